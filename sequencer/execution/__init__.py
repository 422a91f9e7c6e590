"""Executes committed instructions on a node's files.

Imports `ledger`, `planning` and `raft`; imported by the member and nodes.
"""
