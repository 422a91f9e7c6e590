"""Members of a group: what each one holds, says and hands out.

Imports `readers`; imported by `client`.
"""
