"""Raft as a pure function from messages, ticks and proposals to duties."""
