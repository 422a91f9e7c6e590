"""The archiver: decides which rolled files have served their time."""
