"""Peers' identities: certificates, how they are issued and revoked, and what each peer may do.

Imports nothing else of `rt.net`; imported by TLS and by every server.
"""
