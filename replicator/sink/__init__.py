"""The receiving side of one log: what it decides, checks and appends.

Imports `wire`; imported by `pull` and `serve`.
"""
