"""Lets `python -m rt` run the command `rt`."""

from rt.cli.program import main

main()
