"""Keeps what an engine must not forget durable in one directory."""
