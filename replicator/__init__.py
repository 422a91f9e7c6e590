"""The replicator: copies the tail of one log directory to another machine, in both directions."""
