"""A log directory on a disk: writing, reading, watching and following it."""
