"""The sequencer: agrees on byte ranges of sessions and merges them into one log."""
