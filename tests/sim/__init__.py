"""Simulates a whole cluster in one thread from one seed: the real engine and journal."""
