"""EventFile: a descriptor that any thread may write to while another one gives it up."""

import os


class EventFile:
    """EventFile: an eventfd that closes itself once nothing refers to it.

    The owner never closes the descriptor, but drops its reference. A thread that is about to write
    still holds a reference, so the descriptor cannot be reused for another file before the write.
    """

    __slots__ = ("fd",)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)
