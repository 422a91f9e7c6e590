"""The state that instructions lead to, and the instructions themselves.

Imports nothing else of the sequencer; any room may import it.
"""
