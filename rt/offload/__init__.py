"""Copies of rolled files in other stores, and logs read back from them."""
