"""The HTTP port: paths, TLS, deadlines, request budgets, and the interface of a site.

Imports nothing else of `rt.web`; imported by every site.
"""
