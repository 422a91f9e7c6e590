"""A log directory on disk: writing, reading, watching and following it."""
