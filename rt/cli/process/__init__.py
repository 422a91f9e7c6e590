"""A command as a process: signals, children, file descriptors, systemd.

Imports no command; every command may import it.
"""
