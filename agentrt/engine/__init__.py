"""The supervisor and its parts: what makes stored jobs run, and keeps running them whatever dies."""
