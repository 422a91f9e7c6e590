"""Cursors and groups of readers: the leader changes each by compare-and-set in the ledger.

Imports `agree` and `notes`; imported by `admin` and the node's pages.
"""
