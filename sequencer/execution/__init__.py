"""Carrying out what was agreed on, on a node's files.

Imports `ledger` and `planning`; imported by the member.
"""
