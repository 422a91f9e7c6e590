"""Settings of every program: kinds of values, and where they come from."""
