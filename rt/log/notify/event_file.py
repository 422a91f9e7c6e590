"""EventFile: a descriptor that any thread may write to while another one gives it up."""

import os


class EventFile:
    """EventFile: an eventfd, closed when nothing refers to it any more.

    So a thread that is about to write never writes to another file that has got its number: it
    refers to this until it has written. The owner drops its reference in place of closing it.
    """

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)
