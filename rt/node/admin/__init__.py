"""What a peer may ask of a running node, and the record of what it changed.

Imports any room but `host`; imported by `host`.
"""
