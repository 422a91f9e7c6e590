"""The archiver: decides which rolled files are archived."""
