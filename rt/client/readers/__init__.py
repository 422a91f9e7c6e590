"""A client's readers: cursors, registered cursors, last values, and the copy they share.

Imports nothing else of `rt.client`; imported by `client` and `groups`.
"""
