"""Looking into logs: verify, compare, dump and history."""
