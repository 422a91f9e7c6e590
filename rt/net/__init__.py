"""Identities, certificates, TLS, and requests to running nodes."""
