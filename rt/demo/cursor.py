"""The demo's reader with a cursor: a reader is killed, and the next continues where it stopped."""

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from rt.amounts import duration_text
from rt.client.readers.cursor import read_cursors
from rt.errors import RtError
from rt.subscriber import Subscriber

NAME: Final = "demo"
_CHUNK_BYTES: Final = 1 << 16
_PAUSE_S: Final = 0.005  # slows the reader, so that it is killed before it has read everything
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class CursorReport:
    """How two readers of one cursor divided the stream.

    Attributes:
        before: messages that the first one wrote before it was killed.
        repeated: how many of those the second one wrote again.
    """

    before: int
    repeated: int


def kill_reader(root: str, stream: str) -> CursorReport:
    """Kill a reader without warning once its cursor is stored, and let another one continue.

    Args:
        root: directory that holds the stream's copy.
        stream: name of the stream; its payloads are lines.

    Raises:
        RtError: a message is missing, or came out of order.
    """
    with Subscriber(root, stream=stream, follow=False) as reader:
        every = [payload for batch in reader.batches() for payload in batch.payloads()]
    command = [sys.executable, "-m", "rt", "subscribe", "--root", root, "--stream", stream,
               "--cursor", NAME]  # fmt: skip
    first = _killed(command, root, stream)
    done = subprocess.run([*command, "--no-follow"], capture_output=True, check=True)
    second = done.stdout.split(b"\n")[:-1]
    is_whole = len(first) + len(second) >= len(every)
    if not is_whole or every[: len(first)] != first or every[len(every) - len(second) :] != second:
        raise RtError(f"of {len(every)} messages, {len(first)} and {len(second)} came, or others")
    return CursorReport(len(first), len(first) + len(second) - len(every))


def _killed(command: list[str], root: str, stream: str) -> list[bytes]:
    """Read what a reader writes until its cursor is stored, then kill it; return its lines."""
    end_s, written = time.monotonic() + _PATIENCE_S, []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        if process.stdout is None:
            raise RtError("the reader has no output")
        output = select.poll()  # select() knows no descriptor above 1,023
        output.register(process.stdout, select.POLLIN)
        while not (stored := read_cursors(root, stream).get(NAME)) or not stored.position:
            if time.monotonic() > end_s:
                process.kill()
                raise RtError(f"cursor {NAME} was not stored within {duration_text(_PATIENCE_S)}")
            time.sleep(_PAUSE_S)
            if output.poll(_PAUSE_S * 1000):
                written.append(os.read(process.stdout.fileno(), _CHUNK_BYTES))
        process.kill()
        written.append(process.stdout.read())
    return b"".join(written).split(b"\n")[:-1]
