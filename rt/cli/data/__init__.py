"""The commands that move messages: publish, push, pull, bridge, gateway, subscribe and query.

Imports `common` and `process`. `manage`, `cluster` and the demo import it; `rt.cli.program` imports
it by name.
"""
