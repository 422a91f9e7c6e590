"""LocalCopy: the directory that a copy is pulled into, synced about once a second."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Final

from replicator.host import Bell
from replicator.pull.promoted import demand_current
from rt.errors import CorruptLog, Misuse, Refused, RtError, spoken
from rt.format.index import SUFFIX
from rt.format.manifest import Archived, LogIdentity
from rt.log.files.archived import finish_archiving
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk, set_aside
from rt.log.files.lock import take_lock
from rt.log.notify.confirmations import Confirmations
from rt.log.notify.in_process_notify import Announcer, News
from rt.log.write.appender import Appender
from rt.net.authority.succession import Succession
from rt.net.loop.event_loop import EventLoop
from rt.net.loop.timer import Aside, Timer
from rt.position import Position
from rt.traffic import Traffic

_log: Final = logging.getLogger(__name__)
_SYNC_S: Final = 1.0  # what a copy loses in a power cut is fetched again
_KNOWN: Final = (OSError, RtError)


class PulledLog:
    """PulledLog: a subscriber's copy as its connection sees it (`replicator.host.Inbox`)."""

    def __init__(
        self,
        appender: Appender,
        keep: Callable[[Archived], bool],
        grown: Callable[[Position], object],
    ) -> None:
        self.appender = appender
        self._grown = grown
        self.traffic = Traffic()
        self.durable: Position = appender.sync()
        self.news = Announcer(appender.directory)
        self._keep = keep
        self._bell: Bell | None = None
        self.damage: CorruptLog | None = None  # damage at the copy's end
        grown(appender.next_place)  # a mirror serves what is here before it has reached a source

    def claim(self, bell: Bell) -> "PulledLog":
        """Return this copy for a connection; ring `bell` after each sync of it from now on."""
        self._bell = bell
        self.written()
        return self

    leave = None  # no other connection fills a copy

    def written(self) -> None:
        """Announce the copy's new end, which a sync makes durable within about a second."""
        end = self.appender.end
        self._grown(self.appender.next_place)
        self.news.grown(News(end=end if self.appender.is_open else None))

    @property
    def confirmations(self) -> Confirmations:
        """The confirmations to send to the node: only the end that is durable here."""
        return Confirmations(received=self.durable)

    def keeps(self, entry: Archived) -> bool:
        """Whether this copy's policy keeps the bytes of an archived file."""
        return self._keep(entry)

    def needs(self, _end: Position) -> bool:
        """Return False: nothing is merged from a copy."""
        return False

    def doubted(self, _why: str = "") -> None:
        """Check the copy's last file for damage, because its bytes differ from the node's."""
        known = self.appender.manifest
        try:
            self.appender.verify(known.frames_end(self.appender.end.file))
        except CorruptLog as damage:
            self.damage = damage

    def release(self) -> None:
        """Record that the connection has ended."""
        self._bell = None

    def sync(self) -> None:
        """Make everything received durable, and let the connection confirm that.

        Raises:
            OSError: the disk failed; the copy has ended, and another sync must not be tried.
        """
        durable = self.appender.sync()
        if durable != self.durable:
            self.durable, bell = durable, self._bell
            if bell is not None:
                bell.set()


class LocalCopy:
    """The directory of a copy: locks it, opens the log in it, and syncs the log every second.

    `log` is None until the log is open. `claim` opens the log again if the end of the copy was
    damaged. If the copy's log has ended, `claim` rejoins: it turns the copy into a copy of the log
    that continues the ended one. Meanwhile `log` is None; if rejoining fails, `log` stays None
    until the next `claim`.

    Threads: the owner calls `open` and sets `suspect`, `rejoin` and `rejoined` before there is
    another thread, and also calls `start`, `stop` and `close`. The connection's thread calls
    `claim` and appends to `log`. One thread of the loop's pool at a time syncs `log` and archives
    its files. Only the loop sets `failure`.
    """

    def __init__(
        self,
        directory: str,
        keep: Callable[[Archived], bool],
        sweep: Callable[[Appender], object],
        disk: Disk,
        failed: Callable[[], None],
        *,
        grown: Callable[[Position], object] | None = None,
        ended: Callable[[str], Succession | None] = lambda _log: None,
    ) -> None:
        """Lock the directory, creating it if need be.

        Args:
            directory: directory of the copy.
            keep: returns whether to keep the bytes of a file that the cluster has archived.
            sweep: called with the log about once a second, to archive files that need not be kept.
            disk: the disk.
            failed: called when the copy has stopped because of an error.
            grown: called whenever the copy has grown, with the position at which it continues.
            ended: returns the statement that ended a log; None if the log has not ended.

        Raises:
            Misuse: another process pulls into the directory, or the copy was promoted.
        """
        self.directory = directory
        self.log: PulledLog | None = None
        self.failure = ""  # why the copy has stopped
        self.suspect: Callable[[CorruptLog], None] = _say_damaged  # gets damage in a rolled file
        self.rejoin: Callable[[Succession], str] | None = None  # see `PullClient.on_succession`
        self.rejoined: Callable[[], None] = lambda: None
        self._keep = keep
        self._sweep = sweep
        self._disk = disk
        self._failed = failed
        self._grown, self._ended = grown, ended
        disk.make_directory(directory)
        self._lock_fd = self._locked()
        try:
            demand_current(directory)  # while the lock is held, which a promotion takes too
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._due_s = 0.0
        self._timer: Timer | None = None

    def open(self) -> None:
        """If the copy is served (`grown` is given), open its log now; no node has to be reachable.

        Call this before any `claim`.
        """
        if self._grown is not None and self.log is None:
            identity = self._found()
            if identity is not None:
                self.log = self._open(identity)
                self.log.written()

    def start(self, loop: EventLoop) -> None:
        """Start syncing about once a second."""
        self._due_s = time.monotonic() + _SYNC_S
        self._timer = Timer(loop, self._turn, self._fail)
        self._timer.set()

    def claim(self, identity: LogIdentity, bell: Bell) -> PulledLog:
        """Return the copy for a connection to fill, opening or replacing it if necessary.

        Raises:
            Refused: the directory holds a copy of another log.
        """
        if self._lock_fd < 0:  # the lock was released to rejoin, and another process took it
            self._lock_fd = self._locked()
        if self.log is None:
            self.log = self._open(self._found() or identity)
        elif self.log.damage is not None:
            self._mend(self.log, self.log.damage)
        if self.log.appender.identity.id != identity.id:
            self._go_on(self.log, identity.id)
        return self.log.claim(bell)

    def _locked(self) -> int:
        words = "is being pulled into already; stop that, or use another"
        return take_lock(self.directory, f"{self.directory} {words}")

    def _found(self) -> LogIdentity | None:
        """Return the identity of the log in the directory; None if the directory has no log."""
        with closing(LogDirectory(self.directory, self._disk)) as log:
            log.refresh()
            return log.manifest.identity

    def _go_on(self, old: PulledLog, theirs: str) -> None:
        """Turn the copy `old` into a copy of the log `theirs`, which continues the log of `old`.

        Raises:
            Refused: `theirs` does not continue the log of `old`, or rejoining failed.
        """
        word = self._ended(old.appender.identity.id)
        if word is None or word.new != theirs or self.rejoin is None:
            raise Refused("other-log", self._why_other(old.appender, theirs))
        old.sync()
        self.log = None
        old.news.close()
        old.appender.close()
        fd, self._lock_fd = self._lock_fd, -1
        os.close(fd)  # the directory is moved, and its lock with it
        try:
            said = self.rejoin(word)
        except (Misuse, CorruptLog) as error:
            words = f"{self.directory} does not follow the log {theirs}: {error}"
            raise Refused("other-log", words) from None
        self._lock_fd = self._locked()
        self.log = self._open(self._found() or old.appender.identity)
        _log.warning("%s", said, extra={"event": "rejoined"})
        self.rejoined()

    def _why_other(self, ours: Appender, theirs: str) -> str:
        """Return why a node's log cannot be pulled into this copy, and what to do."""
        log, word = ours.identity.id, self._ended(ours.identity.id)
        if word is None or word.new != theirs:
            words = f"{self.directory} is a copy of the log {log}, the node's is {theirs}"
            return f"{words}; move the copy away to begin another"
        beyond = ""
        if ours.next_number > word.number:
            span = f"{word.number} to {ours.next_number - 1}"
            beyond = f"; this copy's messages {span} are not part of that"
        return (
            f"{self.directory} is a copy of the log {log}, which ended at {word.cut}: {theirs} "
            f"continues it{beyond}; rt standby rejoin keeps what is beyond, and goes on from there"
        )

    def stop(self, wait_s: float) -> bool:
        """Stop syncing; return whether a sync under way ended within `wait_s`."""
        return self._timer is None or self._timer.stop(wait_s)

    def sync(self) -> None:
        """Make everything received durable, unless a sync has failed before."""
        if self._lock_fd >= 0 and self.log is not None and not self.failure:
            self.log.sync()

    def close(self) -> None:
        """Release the files and the directory once no thread uses them; idempotent."""
        if self._lock_fd < 0:
            return
        try:
            if self.log is not None:
                self.log.news.close()
                self.log.appender.close()
        finally:
            # forget the number first: a child forked in between must not close another file
            fd, self._lock_fd = self._lock_fd, -1
            os.close(fd)

    def abandon(self) -> None:
        """In a forked child: release the files and the lock, which the parent still uses."""
        fd, self._lock_fd = self._lock_fd, -1
        if self.log is not None:
            self.log.appender.abandon()
        if fd >= 0:
            with suppress(OSError):  # the parent may have been closing it
                os.close(fd)

    def _open(self, identity: LogIdentity) -> PulledLog:
        appender = Appender(self._disk, self.directory, identity)
        try:
            appender.recover()
            finish_archiving(self._disk, self.directory, appender.manifest)
            return PulledLog(appender, self._keep, self._grown or (lambda _end: None))
        except BaseException:
            appender.close()
            raise

    def _mend(self, log: PulledLog, damage: CorruptLog) -> None:
        """Set a damaged active file aside, so that it is copied again; report a rolled one."""
        log.damage = None
        if not set_end_aside(log.appender, damage):
            self.suspect(damage)
            return
        log.news.close()
        self.log = self._open(log.appender.identity)

    def _turn(self) -> float | Aside:
        """Return a sync for a thread to do if one is due; otherwise the seconds until it is."""
        if (left_s := self._due_s - time.monotonic()) > 0:
            return left_s
        log = self.log
        return Aside(partial(self._sync, log), partial(self._synced, log), is_peer=False)

    def _sync(self, log: PulledLog | None) -> None:
        self.sync()
        if log is not None:
            self._sweep(log.appender)

    def _synced(self, log: PulledLog | None, error: Exception | None) -> None:
        self._due_s = time.monotonic() + _SYNC_S
        if error is not None and log is self.log:  # otherwise the log was replaced meanwhile
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stop the copy because of an error, since a copy that cannot be synced must not grow."""
        if self._timer is not None:
            self._timer.stop(0)
        self.failure = f"{self.directory}: {spoken(error)}; this copy has ended"
        _log.critical("%s", self.failure, exc_info=None if isinstance(error, _KNOWN) else error)
        self._failed()


def set_end_aside(copy: Appender, damage: CorruptLog) -> bool:
    """Set the damaged active file of a copy aside, so that the file is copied again.

    Args:
        copy: the damaged copy; this function closes it, so open it again afterwards.
        damage: what was found, and in which file.

    Returns:
        False, and nothing was done, if the damaged file is not the active one.
    """
    file = damage.position.file
    if file in copy.manifest.rolled:
        return False
    _log.error("%s; it is set aside and copied again", damage)
    copy.close()
    for name in (file.file_name, file.file_name + SUFFIX):
        with suppress(FileNotFoundError):
            set_aside(copy.disk, os.path.join(copy.directory, name))
    return True


def _say_damaged(damage: CorruptLog) -> None:
    _log.error("%s; rt verify --repair fetches the file again", damage)
