"""The lives of sessions: who owns one, when it expires, what its publisher may take.

Imports `ingest`, `notes` and `retain`; imported by `agree`, `admin` and `host`.
"""
