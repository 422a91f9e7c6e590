"""Bit rot for tests: flips bits in the rolled files of a log, as a failing disk does."""

import os
from random import Random

from rt.log.files.directory import LogDirectory


def flip_bit(path, offset, bit=0):
    """Flip one bit of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def rolled_files(directory):
    """Return path and size of each rolled file of a log that is not archived, oldest first."""
    log = LogDirectory(directory)
    log.refresh()
    known = log.manifest
    log.close()
    return [
        (os.path.join(directory, file.file_name), known.rolled[file].end)
        for file in known.order
        if file not in known.archived
    ]


def rot(directory, chance: Random, flips):
    """Flip random bits of random rolled files; return the paths of the files that differ now."""
    files, hurt = rolled_files(directory), set()
    for _ in range(flips):
        path, size = chance.choice(files)
        flip_bit(path, chance.randrange(size), chance.randrange(8))
        hurt.add(path)
    return hurt


def contents(directory):
    """Return the bytes of all rolled files of a log, by name."""
    found = {}
    for path, size in rolled_files(directory):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = file.read(size)
    return found
