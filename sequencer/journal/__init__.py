"""Keeps durably, in one directory, the state that an engine must not forget.

Imports `raft` and `rt.log.files`; the sequencer's other rooms and nodes may import it.
"""
