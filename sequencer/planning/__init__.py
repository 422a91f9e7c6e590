"""What a leader knows of every node's copies, and how it plans the next instruction from that.

Imports `ledger`; imported by `execution` and the member.
"""
