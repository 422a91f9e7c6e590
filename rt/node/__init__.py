"""A node: one process that serves, sequences and retains a stream."""
