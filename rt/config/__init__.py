"""Settings of every program: the kinds of values, and where they come from."""
