"""What pushers, pullers and table exports show over HTTP, and the watch that logs their stalls.

Imports `serving` and `nodes`; imported by the bridge and by commands.
"""
