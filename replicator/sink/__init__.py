"""The receiving side of one log: its decisions, its checks, and appending.

Imports `wire`; imported by `pull` and `serve`.
"""
