"""The gateway: streams over HTTP, for programs in any language. It may import all but the CLI.

It tails a local copy of the merged log and publishes through local sessions, as any client does.
"""
