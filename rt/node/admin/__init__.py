"""Requests that peers make of a running node, and the audit log of their changes.

Imports any room but `host`; imported by `host`.
"""
