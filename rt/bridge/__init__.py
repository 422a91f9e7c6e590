"""The bridge between clusters: publishes in one cluster what another has merged.

It uses clients as any program does; only its command imports it.
"""
