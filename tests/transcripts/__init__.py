"""Dialogues between nodes, as text that can be read aloud, and the player that holds them true."""
