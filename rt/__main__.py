"""`python -m rt` is `rt`."""

from rt.cli.program import main

main()
