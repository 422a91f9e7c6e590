"""Copies rolled files to other stores, and reads logs back from there."""
