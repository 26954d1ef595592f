"""`python -m agentrt` is the command line."""

from agentrt.cli import main

main()
