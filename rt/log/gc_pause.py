"""GC pause: stops garbage collection while very many objects are created that all stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the cyclic collector while objects without cycles are created.

    It would traverse all of them again and again: a third of the time for the lines of 100,000
    files.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
