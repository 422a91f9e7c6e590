"""The bytes of a log: frames, columns, ranges and manifest lines, and what they prove. Pure."""
