"""`python -m rt` is `rt`."""

from rt.cli import main

main()
