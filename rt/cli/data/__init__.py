"""The commands that move messages: publish, push, pull, subscribe.

Imports `common` and `process`; imported by `rt.cli.program`, by name,
`manage`, `cluster` and the demo.
"""
