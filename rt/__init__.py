"""A log-shipping reliable transport: publish to a local log, merge by Raft, read everywhere."""
