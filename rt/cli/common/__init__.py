"""What commands share: options, help, questions to nodes, output and exit codes.

Imports no command; every command may import it.
"""
