"""Detects damaged files and replaces them with another node's copy.

Imports `pull` and `wire`; imported by nodes and commands.
"""
