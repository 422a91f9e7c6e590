"""Membership in a group: a member's claims, its reports to the nodes, and its messages.

Imports `readers`; imported by `client`.
"""
