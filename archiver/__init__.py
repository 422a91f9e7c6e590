"""The archiver: decides which rolled files are archived.

Imports `rt.log` and what is below it, neither other service; nodes and the edges may import it.
"""
