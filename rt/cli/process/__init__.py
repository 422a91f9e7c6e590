"""How a command lives as a process: signals, children, descriptors, its HTTP port.

Imports no command; every command may import it.
"""
