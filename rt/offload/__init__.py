"""Copies rolled files to other stores, and reads logs back from there.

Imports `rt.log` and what is below it; everything above may import it.
"""
