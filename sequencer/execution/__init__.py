"""Executes committed instructions on a node's files.

Imports `ledger` and `planning`; imported by the member.
"""
