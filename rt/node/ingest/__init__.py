"""A node's copies of sessions: receiving, syncing, dropping and passing them on.

Imports `settings`; imported by `agree`, `retain`, `sessions` and `host`.
"""
