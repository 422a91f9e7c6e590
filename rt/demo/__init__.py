"""The demo: a whole stream on real data.

It may import everything, commands too; nothing imports it, and `rt demo` finds it by name.
"""
