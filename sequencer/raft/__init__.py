"""Raft: a pure engine, from messages and ticks to duties."""
