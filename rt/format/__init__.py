"""The log's bytes: frames, columns, ranges, manifest lines, and judging damage. Pure."""
