"""The demo: a whole stream on real data."""
