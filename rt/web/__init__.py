"""What a running process shows over HTTP: metrics, health and a page, all read-only.

Imports nodes, clients and what is below them; gateway, bridge and commands may import it.
"""
