"""FileFetch: copies one rolled file of a merged log from another node."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from replicator.pull.client import PullClient
from replicator.wire.link import MESSAGE_BYTES_PER_S
from rt.amounts import duration_text
from rt.errors import Refused, Stopped
from rt.format.manifest import Rolled
from rt.limits import KIB
from rt.log.files.archived import not_copied
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import Disk
from rt.log.write.appender import Appender
from rt.log.write.rolled_check import line_before
from rt.names import MERGED_NAME, stream_directory
from rt.net.addresses import Address, address_text
from rt.net.contexts import Contexts
from rt.position import Position

DIRECTORY: Final = "repair"  # inside the log's directory, so on its file system
_QUIET_S: Final = 10.0  # a node that sends nothing for so long is skipped
_LOOK_S: Final = 0.02


class FileFetch:
    """FileFetch: fetches files for one log directory (`replicator.repair.mend.FileSource`).

    The file is pulled as a subscriber would pull it, into a temporary log that appears to have
    skipped all earlier files. The manifest line of the preceding file proves to both sides that
    they have the same log. One thread uses it.
    """

    def __init__(
        self,
        directory: str,
        nodes: Callable[[], Sequence[Address]],
        contexts: Contexts,
        disk: Disk,
        *,
        pull: Callable[..., PullClient] = PullClient,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare, and remove unused copies of an earlier process.

        Args:
            directory: directory of the log.
            nodes: returns the present addresses of other nodes, or mirrors.
            contexts: contexts made by `rt.net.tls.client_context`.
            disk: the disk to write the copy to.
            pull: makes a client that pulls a copy; its arguments are those of `PullClient`.
            clock: a monotonic clock, in seconds.
        """
        self._directory = os.path.join(directory, DIRECTORY)
        self._addresses = nodes
        self._contexts = contexts
        self._disk = disk
        self._is_stopping = False
        self._pull, self._clock = pull, clock
        self._ending: PullClient | None = None  # still ending, and holding descriptors
        self.clear()

    def nodes(self) -> Sequence[str]:
        """Return the addresses of all nodes that may be asked."""
        return [address_text(each) for each in self._addresses()]

    def fetch(self, node: str, log: Appender, line: Rolled) -> str:
        """Copy a rolled file from a node, and return the path of the copy.

        Arguments and errors as for `replicator.repair.mend.FileSource`.
        """
        self._demand_ended()
        self.clear()
        address = next((each for each in self._addresses() if address_text(each) == node), None)
        if address is None:
            raise Refused("not-a-member", "it was removed just now")
        identity, known = log.identity, log.manifest
        directory = os.path.join(stream_directory(self._directory, identity.stream), MERGED_NAME)
        with closing(Appender(self._disk, directory, identity)) as begun:
            before = line_before(known, line)
            if before is not None:
                begun.skip_archived(before, not_copied(before))
        client = self._pull(
            self._directory, identity.stream, [address], self._contexts, disk=self._disk
        )
        try:
            client.start()
            self._wait(client, line)
        except RuntimeError as error:
            raise Refused("busy", f"the system allows no further thread: {error}") from error
        finally:
            self._ending = None if client.stop() else client  # a dial may take a while to end
        self._demand_ended()
        with closing(LogDirectory(directory, self._disk)) as got:
            got.refresh()
            if got.is_gone(line.file):
                raise Refused("archived", "it has archived the file")
        return os.path.join(directory, line.file.file_name)

    def stop(self) -> None:
        """Abandon a running fetch, and fetch no more; any thread may call it."""
        self._is_stopping = True

    def clear(self) -> None:
        """Remove fetched files that are not used."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _demand_ended(self) -> None:
        """Stop the client of the last fetch; raise `Refused` if it has not ended yet."""
        if self._ending is not None and not self._ending.stop():
            raise Refused("busy", "the last connection has not ended yet")
        self._ending = None

    def _wait(self, client: PullClient, line: Rolled) -> None:
        """Wait until the file was copied; raise `Refused` if the node does not send all of it."""
        began_s = since_s = self._clock()
        reached = Position(0)
        while (status := client.status()).next_place <= line.file + line.end:
            if self._is_stopping:
                raise Stopped("the repair was stopped")
            # before the first answer, the error says that there is none yet
            if not client.running or (status.error and client.has_tried):
                raise Refused("unrepaired", status.error)
            if status.has_all or status.is_ahead:
                raise Refused("behind", "it does not have the file yet")
            if status.position > reached:
                reached, since_s = status.position, self._clock()
            elif self._clock() - since_s > _QUIET_S:
                raise Refused("quiet", f"it has sent nothing for {duration_text(_QUIET_S)}")
            copied = max(0, status.position - line.file)
            if self._clock() - began_s > _QUIET_S + copied / MESSAGE_BYTES_PER_S:
                rate = MESSAGE_BYTES_PER_S // KIB
                raise Refused("slow", f"it sends less than {rate} KiB a second")
            time.sleep(_LOOK_S)
