"""The sending side of one log: its decisions, and how it reads and sends.

Imports `wire`; imported by `push` and `serve`.
"""
