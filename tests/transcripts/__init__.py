"""Dialogues between nodes as text that can be read aloud, and the player that checks them."""
