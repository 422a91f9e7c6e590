"""The command line: a folder for each group of commands, and folders for what they share.

It may import everything but the demo. Only `python -m rt` and the demo import it.
"""
