"""A whole cluster in one thread and one seed: real engine and journal in a simulated world."""
