"""Planning: how a leader tracks every node's copies, and plans the next instruction.

Imports `ledger`; imported by `execution` and the member.
"""
