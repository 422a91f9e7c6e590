"""What the ledger's notes of readers say: registered cursors, groups, and the files they pin.

Imports `settings`; any other room may import it.
"""
