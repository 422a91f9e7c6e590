"""Retention of the merged log: archiving, sweeping, and snapshots.

Imports `ingest` and `notes`; imported by `agree`, `sessions`, `admin` and `host`.
"""
