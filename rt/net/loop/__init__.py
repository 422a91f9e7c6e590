"""One event loop for all connections of a process, and its bookkeeping (ADR 33)."""
