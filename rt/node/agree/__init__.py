"""A node's part in the sequencer: its duties, done step by step, and its leadership.

Imports `ingest`, `retain` and `sessions`; imported by every room that acts on what was agreed.
"""
