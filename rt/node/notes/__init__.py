"""What readers have the nodes remember: registered cursors, groups and their claims.

Imports `agree`; imported by `admin` and `host`.
"""
