"""Inspects logs: verify, compare, dump, trace and history."""
