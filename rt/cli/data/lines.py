"""Lines: splits bytes that arrive in arbitrary pieces into lines."""

from rt.errors import Misuse


class LineCutter:
    r"""Takes pieces of input, and returns each line, without its newline, once it is complete.

    >>> cutter = LineCutter(line_bytes_max=10)
    >>> cutter.feed(b"AA1\nB6"), cutter.feed(b" 2\n"), cutter.finish()
    ([b'AA1'], [b'B6 2'], [])
    """

    def __init__(self, line_bytes_max: int) -> None:
        self.lines = 0  # lines returned so far
        self._max = line_bytes_max
        self._rest: list[bytes] = []
        self.unfinished = 0  # bytes of an incomplete last line

    def feed(self, data: bytes) -> list[bytes]:
        """Take a piece of input; return the lines that it completes.

        Raises:
            Misuse: The incomplete line is already too long; earlier calls have returned all lines
                before it.
        """
        if self.unfinished > self._max:
            raise Misuse(f"the line is longer than {self._max} bytes; send it in parts")
        lines = data.split(b"\n")
        if len(lines) == 1:
            self._keep(data)
            return []
        if self._rest:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self.unfinished = [], 0
        self._keep(lines.pop())
        self.lines += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, if the input ended without a newline."""
        lines = [b"".join(self._rest)] if self._rest else []
        self._rest, self.unfinished = [], 0
        self.lines += len(lines)
        return lines

    def _keep(self, data: bytes) -> None:
        if data:
            self._rest.append(data)
            self.unfinished += len(data)
