"""The log's bytes: frames, columns, ranges, manifest lines, and judging damage.

Pure: imports only positions, names, limits, errors and the like; everything may import it.
"""
