"""Readers' notes in the ledger: registered cursors, groups, and the files they pin.

Imports `settings`; any other room may import it.
"""
