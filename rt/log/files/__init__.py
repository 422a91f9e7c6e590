"""The files of a log directory and the few calls made to a file system.

Imports nothing else of `rt.log`; any room may import it.
"""
