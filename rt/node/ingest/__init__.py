"""A node's copies of sessions: receiving, syncing, dropping and relaying them.

Imports `resources`; imported by `agree`, `retain`, `sessions` and `host`.
"""
