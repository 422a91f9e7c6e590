"""The archiver: decides which rolled files are archived.

Imports `rt.log` and the packages below it, but neither of the other services; nodes and the edges
may import it.
"""
