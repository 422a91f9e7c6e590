"""Readers' notes in the ledger: registered cursors, groups, and the files they pin.

Imports `settings`; the rooms above it, and the node's pages, may import it.
"""
