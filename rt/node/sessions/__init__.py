"""The lives of sessions: who owns one, when it expires, what its publisher may take.

Imports `agree` and `ingest`; imported by `admin` and `host`.
"""
