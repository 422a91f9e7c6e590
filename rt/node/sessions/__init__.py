"""Sessions' lifecycles: their owners, their expiry, and their publishers' quotas.

Imports `ingest`, `notes` and `retain`; imported by `agree`, `admin` and `host`.
"""
