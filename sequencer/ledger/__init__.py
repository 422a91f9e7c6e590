"""The replicated state machine (`Ledger`) and its commands (instructions).

Imports `raft`; the rooms of planning and execution, nodes and the edges may import it.
"""
