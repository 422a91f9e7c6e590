"""Keeps the state that an engine must not forget durably in one directory.

Imports `raft` and `rt.log.files`; the sequencer's other rooms and nodes may import it.
"""
