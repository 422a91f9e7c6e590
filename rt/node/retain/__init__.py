"""Keeping and giving up the merged log: archiving, sweeping and scrubbing.

Imports `agree`; imported by `admin` and `host`.
"""
