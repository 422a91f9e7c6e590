"""The process of a node as one event loop and a small pool (ADR 33).

Imports `agree`; imported by `host` and `observe`.
"""
