"""A node's part in the sequencer: its duties, step by step, and its leadership.

Imports `ingest`, `retain` and `sessions`; imported by every room that acts on what was agreed.
"""
