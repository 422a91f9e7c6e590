"""The sending side of one log: what it decides, reads and sends.

Imports `wire`; imported by `push`, `serve` and `repair`.
"""
