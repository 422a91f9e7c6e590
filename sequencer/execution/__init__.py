"""Executes committed instructions on a node's files.

Imports `ledger`, `planning` and `raft`; the member and nodes import it.
"""
