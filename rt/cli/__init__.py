"""The command line: a folder for each group of commands, and one for what commands share.

It may import everything but the demo; only `python -m rt` and the demo import it.
"""
