"""Identities, certificates, TLS, and requests to running nodes.

Imports `rt.inspect`, `rt.log` and what is below them, no service; services, nodes and everything
above may import it.
"""
