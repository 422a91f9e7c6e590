"""What a node shows over HTTP: metrics, overview, files and cursors.

Imports `serving`; imported by `programs`, the bridge and commands.
"""
