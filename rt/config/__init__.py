"""Settings of every program: the kinds of values, and where they come from.

Imports only errors and names; everything above `rt.format` may import it.
"""
