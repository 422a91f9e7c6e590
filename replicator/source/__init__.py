"""The sending side of one log: decides what to send, reads it and sends it.

Imports `wire`; imported by `push` and `serve`.
"""
