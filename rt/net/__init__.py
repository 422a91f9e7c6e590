"""Identities, certificates, TLS, and questions to running nodes."""
