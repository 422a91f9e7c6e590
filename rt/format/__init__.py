"""The bytes of a log: frames, columns, ranges, manifest lines, and their judges. Pure."""
