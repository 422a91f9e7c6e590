"""Keeping and giving up the merged log: archiving, sweeping and scrubbing.

Imports `ingest` and `notes`; imported by `agree`, `sessions`, `admin` and `host`.
"""
