"""Planning: how a leader tracks every node's copies, and plans the next instruction.

Imports `ledger` and `raft`; imported by `execution`, the member and nodes.
"""
