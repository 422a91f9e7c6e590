"""The replicated state machine (`Ledger`) and its commands (instructions).

Imports nothing else of the sequencer; any room may import it.
"""
