"""Memo: caches decoded manifest lines, which many simulated logs and connections share.

It wraps only pure functions that no mutant replaces.
"""

from functools import lru_cache

from rt.format import manifest

_BLOCKS = 1 << 13  # enough for some worlds, a few hundred bytes each


def install() -> None:
    """Let `Manifest.feed` cache what it decodes; idempotent."""
    names = vars(manifest)
    for name in ("read_block", "decode_entry"):
        if not hasattr(names[name], "cache_info"):
            names[name] = lru_cache(_BLOCKS)(names[name])
