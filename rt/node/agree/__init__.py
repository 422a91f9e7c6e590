"""A node's part in the sequencer: its duties, one step at a time, and who leads.

Imports `ingest`, `retain` and `sessions`; imported by every room that acts on what was agreed.
"""
