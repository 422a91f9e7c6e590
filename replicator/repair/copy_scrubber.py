"""CopyScrubber: scrubs a subscriber's copy, and fetches files that its disk has lost."""

import time
from collections.abc import Sequence

from replicator.pull.client import PullClient
from replicator.repair.file_fetch import FileFetch
from replicator.repair.mend import mend_file
from replicator.repair.scrub import Scrub, ScrubPorts
from replicator.repair.scrub_record import ScrubRecord
from replicator.repair.scrubber import SCRUB_EVERY_S, Scrubber
from rt.errors import CorruptLog
from rt.log.files.damaged_files import DamagedFiles
from rt.log.files.disk import OsDisk
from rt.log.write.appender import Appender
from rt.net.addresses import Address
from rt.net.contexts import Contexts


def copy_scrubber(
    client: PullClient,
    nodes: Sequence[Address],
    contexts: Contexts,
    bytes_s: int,
    barred: DamagedFiles | None = None,
    *,
    every_s: float = SCRUB_EVERY_S,
) -> Scrubber:
    """Return a scrubber for a client's copy; not started yet.

    Args:
        client: the client that fills the copy, not started yet.
        nodes: the nodes to fetch files from.
        contexts: contexts made by `rt.net.tls.client_context`.
        bytes_s: bytes to read per second; 0 reads only files reported as damaged.
        barred: where to record damaged files, so that a server of the copy does not serve them.
        every_s: time from the end of a round to the start of the next.
    """
    fetch = FileFetch(client.directory, lambda: nodes, contexts, OsDisk())

    def logs() -> list[Appender]:
        return [] if client.log is None else [client.log]

    def report(_damage: CorruptLog, _log: Appender) -> None:
        """Do nothing: a copy of a merged log has no sessions."""

    ports = ScrubPorts(
        logs, lambda log, line: mend_file(fetch, log, line), report, barred or DamagedFiles(),
        time.time_ns,
    )  # fmt: skip
    scrub = Scrub(ports, ScrubRecord(client.directory), every_s=every_s if bytes_s else None)
    scrubber = Scrubber(scrub, bytes_s, fetch.stop)
    client.on_damage(scrubber.suspect)
    return scrubber
