"""Inspects logs: verify, compare, dump, trace and history.

Imports `rt.log`, `rt.offload` and what is below them; everything from `rt.net` upwards may
import it.
"""
