"""Successions: the signed statements a process has received that one log continues another."""

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from cryptography import x509

from rt.errors import SEALED, Misuse, Refused, spoken
from rt.log.files.disk import (
    Disk,
    make_private_directory,
    read_or_rotten,
    read_small,
    replace_small,
    write_whole,
)
from rt.net.authority.succession import (
    SUCCESSION_BYTES_MAX,
    Succession,
    one_line,
    parse_succession,
)

WORDS_MAX: Final = 4  # changes of sites by `promote --now` that are remembered
SUFFIX: Final = ".succession"
FIELD: Final = "succession"  # field of a request or an answer that has a statement
ENDED_NAME: Final = f"ended{SUFFIX}"  # in a node's directory: what ended its log
_log: Final = logging.getLogger(__name__)


class Successions:
    """Successions: keeps the statements of which log continues another, and receives new ones.

    A statement ("a word" in the code) says that a log has ended and which log continues it. Only
    statements signed by an authority are accepted, so any peer may deliver them. A connection sends
    all statements when it begins. A connection that began before the latest statement was
    received is closed and dialled again, so that a node of an ended log receives the statement
    before it confirms anything more.

    Threads: any thread may call any method. `_lock` is held while `_known` is replaced as a whole;
        `serial` grows after that, and any thread may read both.
    """

    def __init__(
        self,
        stream: str,
        authorities: Callable[[], Collection[x509.Certificate]],
        path: str = "",
        *,
        log: str = "",
        kept: tuple[Disk, str] | None = None,
    ) -> None:
        """Read the statements received earlier.

        Args:
            stream: the stream.
            authorities: returns the certificates whose signatures count.
            path: the file that stores the statements; "" to store none.
            log: at a node, the id of its own log; statements about other logs are then ignored, and
                none is written to `path`.
            kept: at a node, the disk and directory in which it keeps the statement that ended its
                own log; None to keep none.

        Raises:
            Misuse: the kept statement is damaged, or was not signed by an authority.
            OSError: the disk failed.
        """
        self._stream, self._authorities, self._path, self._log_id = stream, authorities, path, log
        self._kept, self._is_kept = kept, False
        self._known: tuple[tuple[Succession, str], ...] = ()  # with its text, oldest first
        self.serial = 0  # how many words were ever heard
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._read_kept()
        self.reload()

    @property
    def texts(self) -> Sequence[str]:
        """The statements to send to peers, one line each."""
        return [text for _, text in self._known]

    @property
    def moved_to(self) -> Sequence[str]:
        """For each statement, the addresses of the cluster that continues the log."""
        return [word.moved_to for word, _ in self._known]

    def after(self, log: str) -> Succession | None:
        """Return the statement that ended a log; None if none is known here."""
        return next((word for word, _ in self._known if word.old == log), None)

    def hear(self, text: str) -> bool:
        """Accept a peer's statement if it is new and signed; return whether it was accepted."""
        with self._lock:
            is_news = self._take(text)
            if is_news:
                self._write()
        return is_news

    def carried(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a request or an answer with the latest statement added, if there is one."""
        return {FIELD: self.texts[-1], **message} if self.texts else message

    def hear_in(self, message: dict[str, Any]) -> None:
        """Accept the statement that a request, an answer or a refusal has as a field, if any."""
        if isinstance(text := message.get(FIELD), str):
            self.hear(text)

    def ended_by(self, text: str) -> Succession | None:
        """At a node, accept a peer's statement; return the one that ends the node's log, or None.

        The returned statement is durable, unless the disk fails, which is logged.
        """
        self.hear(text)
        self.keep()
        return self.ended

    @property
    def ended(self) -> Succession | None:
        """The statement that ended a node's own log; None if the log continues."""
        return self.after(self._log_id)

    def demand_current(self) -> None:
        """Raise `Refused` if a statement has ended this node's own log."""
        if (word := self.ended) is not None:
            raise ended(word)

    def keep(self) -> bool:
        """Make the statement that ended a node's own log durable; return whether it is durable."""
        with self._lock:
            text = next((text for word, text in self._known if word.old == self._log_id), "")
            if not text or self._kept is None or self._is_kept:
                return self._is_kept
            disk, directory = self._kept
            try:
                write_whole(disk, directory, ENDED_NAME, [text.encode(), b"\n"])
            except OSError as error:
                _log.warning(
                    "%s/%s: that this log has ended cannot be kept, and a restart may forget it: "
                    "%s", directory, ENDED_NAME, spoken(error),
                )  # fmt: skip
                return False
            self._is_kept = True
            return True

    def _read_kept(self) -> None:
        """Read the statement on disk that ended this node's log; `Misuse` if it is damaged."""
        if self._kept is None:
            return
        disk, directory = self._kept
        path = f"{directory}/{ENDED_NAME}"
        try:
            text = read_or_rotten(disk, path, SUCCESSION_BYTES_MAX)
        except FileNotFoundError:
            return
        try:
            word = parse_succession(text, self._authorities())
        except (Misuse, Refused) as error:
            raise Misuse(
                f"{path} says that this node's log has ended, and cannot be believed: {error}; "
                "remove it only if no other cluster continues the log"
            ) from None
        if word.old == self._log_id:  # not that of a log which was here before
            self._is_kept = self._take(text.decode().rstrip("\n"))

    def reload(self) -> None:
        """Read the file again if another process has changed it."""
        if not self._path:
            return
        with self._lock:
            try:
                found = os.stat(self._path)
                stamp = found.st_mtime_ns, found.st_size, found.st_ino
                if stamp == self._stamp:
                    return
                self._stamp = stamp
                lines = read_small(self._path, WORDS_MAX * SUCCESSION_BYTES_MAX).decode()
            except FileNotFoundError:
                return
            except (OSError, UnicodeDecodeError) as error:
                why = spoken(error) if isinstance(error, OSError) else error
                _log.warning("%s: which log continues another cannot be read: %s", self._path, why)
                return
            for line in lines.splitlines():
                self._take(line)

    def _take(self, text: str) -> bool:
        if any(text == known for _, known in self._known):
            return False
        try:
            word = parse_succession(text, self._authorities())
            line = one_line(text).decode().rstrip()
        except (Misuse, Refused) as error:
            _log.warning("a word on which log continues another is not believed: %s", error)
            return False
        if word.stream != self._stream or (
            self._log_id and self._log_id not in (word.old, word.new)
        ):
            return False
        if (known := self.after(word.old)) is not None:
            if known.new != word.new:
                _log.error(
                    "log %s continues as %s, and another word names %s, which is not believed: two "
                    "sites were promoted", word.old, known.new, word.new,
                )  # fmt: skip
            return False
        every = sorted([*self._known, (word, line)], key=lambda each: each[0].at_ns)
        self._known = tuple(every[-WORDS_MAX:])
        self.serial += 1
        _log.warning(
            "the log %s has ended at %s: %s continues it at %s, by %s", word.old, word.cut,
            word.new, word.moved_to, word.by, extra={"event": "succession"},
        )  # fmt: skip
        return True

    def _write(self) -> None:
        """Write all statements to the file; if that fails, peers send them after a restart."""
        if not self._path or self._log_id:
            return
        try:
            make_private_directory(os.path.dirname(os.path.abspath(self._path)))
            data = "".join(f"{text}\n" for text in self.texts).encode()
            replace_small(self._path, f"{self._path}.new", data)
        except OSError as error:
            _log.warning("%s: which log continues another cannot be remembered: %s", self._path,
                         spoken(error))  # fmt: skip


class Greeting:
    """Greeting: the statements a connection sends first; outdated once a newer one is received."""

    def __init__(self, known: Successions | None) -> None:
        """Send the statements in `known`; None sends nothing."""
        self._known = known
        self.serial = 0  # how many words were known when the connection began

    def begin(self) -> Sequence[str]:
        """Return the statements that a connection sends when it begins."""
        if self._known is None:
            return ()
        self._known.reload()
        self.serial = self._known.serial
        return self._known.texts

    @property
    def is_outdated(self) -> bool:
        """Whether the connection must be dialled again, because there is a newer statement."""
        return self._known is not None and self._known.serial != self.serial


def own_path(ca_path: str, stream: str) -> str:
    """Return the path, next to `ca.pem`, of the statement that says how a node's log began."""
    return os.path.join(os.path.dirname(ca_path), f"{stream}{SUFFIX}")


def ended(word: Succession) -> Refused:
    """Return the refusal that a node sends its peers once its log has ended."""
    return Refused(
        SEALED, f"the log {word.old} has ended at {word.cut}; it continues at {word.moved_to}"
    )
