"""Control of a running `rt up`: passes requests from another terminal through files.

The files are in the cluster's directory. Unlike a socket, a file needs no free port, and its path
may be longer than 108 bytes.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from rt.amounts import duration_text
from rt.errors import Misuse, RtError, spoken
from rt.log.files.disk import FILE_MODE, OsDisk
from rt.log.files.lock import take_lock
from rt.text import printable

_REQUEST: Final = "up.request"
_ANSWER: Final = "up.answer"
_BYTES_MAX: Final = 64 * 1024  # an answer quotes the end of a node's stderr, 2,000 bytes
_ANSWER_S: Final = 30.0  # a node that starts on a busy machine takes seconds
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request to kill, start or add a node.

    Attributes:
        verb: `kill`, `start` or `add`.
        node: The name of the node.
    """

    verb: str
    node: str


def ask_cluster(root: str, request: ControlRequest) -> str:
    """Send a request to the `rt up` that runs a cluster in `root`, and return the answer.

    Raises:
        Misuse: No cluster runs there, or the request is refused.
        RtError: There is no answer within 30 s, or the request failed.
    """
    demand_running(root)
    number = secrets.token_hex(8)
    fields = {"id": number, "verb": request.verb, "node": request.node}
    _write(os.path.join(root, _REQUEST), fields)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        answer = _read(os.path.join(root, _ANSWER))
        if answer.get("id") == number:
            return _outcome(answer)
        time.sleep(_POLL_S)
    raise RtError(f"the cluster in {root} did not answer within {duration_text(_ANSWER_S)}")


class ControlServer:
    """Receives requests for the cluster in a directory, one at a time.

    Entering and leaving the context remove the files of an earlier request.
    """

    def __init__(self, root: str) -> None:
        self._request = os.path.join(root, _REQUEST)
        self._answer = os.path.join(root, _ANSWER)

    def serve(self, obey: Callable[[ControlRequest], str]) -> None:
        """Carry out the request that has arrived since the last call, if any, and answer it.

        Args:
            obey: Carries a request out and returns the answer; its `RtError` or `OSError` is sent
                as the answer, and not raised.
        """
        fields = _read(self._request)
        if not fields:
            return
        with suppress(FileNotFoundError):
            os.unlink(self._request)
        request = ControlRequest(str(fields.get("verb")), str(fields.get("node")))
        try:
            answer = {"said": obey(request)}
        except Misuse as error:
            answer = {"misuse": str(error)}
        except (RtError, OSError) as error:
            answer = {"error": spoken(error)}
        _write(self._answer, {"id": fields.get("id"), **answer})

    def __enter__(self) -> Self:
        self._clear()
        return self

    def __exit__(self, *_error: object) -> None:
        self._clear()

    def _clear(self) -> None:
        for path in (self._request, self._answer):
            with suppress(FileNotFoundError):
                os.unlink(path)


def demand_running(root: str) -> None:
    """Raise `Misuse` unless a running `rt up` holds the lock of the cluster's directory `root`."""
    if os.path.isdir(root):
        try:
            os.close(take_lock(root, "running"))
        except Misuse:
            return
    raise Misuse(f"no cluster is running in {root}; start one with rt up, or name its --root")


def _outcome(answer: dict[str, Any]) -> str:
    if "misuse" in answer:
        raise Misuse(printable(str(answer["misuse"])))
    if "error" in answer:
        raise RtError(printable(str(answer["error"])))
    return printable(str(answer.get("said", "")))


def _write(path: str, fields: dict[str, Any]) -> None:
    """Replace a file atomically by `fields` as JSON, so that no reader sees half of it."""
    part = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(fields, file)
    os.replace(part, path)


def _read(path: str) -> dict[str, Any]:
    """Return the JSON fields in a file; empty if the file is missing or cannot be read."""
    try:
        file = OsDisk().open_read(path)
    except OSError:
        return {}
    try:
        fields = json.loads(file.pread(_BYTES_MAX, 0))
    except (ValueError, RecursionError):
        return {}
    finally:
        file.close()
    return fields if isinstance(fields, dict) else {}
