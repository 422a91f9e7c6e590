"""What a leader knows of every node's copies, and the next instruction it makes of that.

Imports `ledger`; imported by `execution` and the member.
"""
