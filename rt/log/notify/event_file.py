"""EventFile: a descriptor that any thread may write to while another one gives it up."""

import os


class EventFile:
    """EventFile: an eventfd that closes itself once nothing refers to it.

    The owner drops its reference instead of closing it. A thread that is about to write still holds
    a reference, so it cannot write to another file that was given the same descriptor.
    """

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)
