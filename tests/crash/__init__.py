"""kill -9 and SIGSTOP at random moments, with a checker that reads the history afterwards."""
