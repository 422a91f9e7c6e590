"""Limits on what the peers with one certificate name may use of a server.

Imports `wire`; imported by `pull`, `serve`, nodes and sites.
"""
