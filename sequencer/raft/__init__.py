"""Raft as a pure function from messages, ticks and proposals to duties.

Imports only `rt.format` and `rt.errors`, and does no I/O; the sequencer's other rooms, nodes and
the edges may import it.
"""
