"""One event loop for all connections of a process, and its bookkeeping (ADR 33).

Imports nothing else of `rt.net`; services, nodes, clients and sites may import it.
"""
