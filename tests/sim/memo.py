"""Memo: decode each manifest line once, since many simulated logs and connections read the same.

Only pure functions are wrapped, and none that a mutant replaces.
"""

from functools import lru_cache

from rt.format import manifest

_BLOCKS = 1 << 13  # some worlds' worth, of a few hundred bytes each


def install() -> None:
    """Let `Manifest.feed` remember what it decoded; a second call does nothing."""
    names = vars(manifest)
    for name in ("read_block", "decode_entry"):
        if not hasattr(names[name], "cache_info"):
            names[name] = lru_cache(_BLOCKS)(names[name])
