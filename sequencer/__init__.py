"""The sequencer: agrees on byte ranges of sessions and merges them into one log.

Imports `rt.net`, `rt.log` and the packages below them, but neither of the other services; nodes and
the edges may import it.
"""
