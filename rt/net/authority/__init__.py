"""Who a peer is: certificates, what issues, renews and revokes them, and what each is granted.

Imports nothing else of `rt.net`; imported by TLS and by every server.
"""
