"""Benchmarks: each beside the shortest Python that moves the same bytes, in the same run."""
