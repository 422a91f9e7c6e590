"""The sequencer: agrees on byte ranges of sessions and merges them into one log.

Imports `rt.net`, `rt.log` and what is below them, neither other service; nodes and the edges may
import it.
"""
