"""The bridge between clusters: what one has merged is published in another.

It uses clients as any program does; only its command imports it.
"""
