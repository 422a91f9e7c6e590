"""The HTTP port: paths, TLS, deadlines, budgets, and what a site has to offer.

Imports nothing else of `rt.web`; imported by every site.
"""
