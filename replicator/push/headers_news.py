"""HeadersNews: saves, for a stream's publishers, whether its nodes allow headers."""

from contextlib import suppress

from rt.log.notify.headers_note import HeadersNote


class HeadersNews:
    """HeadersNews: whether publishers may write headers, according to the nodes' answers.

    Publishers may write headers if one node allows it, since a node allows headers only once all
    nodes can read them.

    Threads: only the loop uses this, except that the owner calls `begin` before there is a
    connection.
    """

    def __init__(self, directory: str) -> None:
        """Begin without an answer; the stream's directory may be created later."""
        self._file = HeadersNote(directory)
        self._said: dict[str, str] = {}  # by node, why it does not allow headers; "" if it does
        self._noted: str | None = None

    def begin(self) -> None:
        """Remove a refusal that an earlier run saved, since it may be outdated."""
        with suppress(OSError):
            if self._file.read():
                self._file.remove()

    def record(self, node: str, why_not: str) -> None:
        """Record and save why a node does not allow headers; "" if it does.

        If the disk fails, the next `save` saves the answer.
        """
        self._said[node] = why_not
        with suppress(OSError):
            self.save()

    def save(self) -> None:
        """Save the nodes' combined answer if it has changed; `OSError` if that fails."""
        if not self._said:
            return
        answers = sorted(set(self._said.values()))
        why_not = "; ".join(answers) if all(answers) else ""
        if why_not != self._noted and self._file.write(why_not):
            self._noted = why_not
