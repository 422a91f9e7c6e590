"""Limits on how much of a server the peers that share a certificate name may use.

Imports `wire`; imported by `pull`, `serve`, nodes and sites.
"""
