"""The server of a node: who may connect, and what each connection gets.

Imports `source`, `sink`, `limits` and `wire`; imported by nodes and mirrors.
"""
