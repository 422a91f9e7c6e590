"""Keeps the state that an engine must not forget durably in one directory."""
