"""Scrubbing: which logs a node scrubs, and where it fetches lost bytes from."""

import time
from collections.abc import Sequence

from replicator.repair.file_fetch import FileFetch
from replicator.repair.mend import mend_file
from replicator.repair.scrub import Scrub, ScrubPorts
from replicator.repair.scrub_record import ScrubRecord
from replicator.repair.scrubber import Scrubber
from rt.errors import CorruptLog
from rt.log.write.appender import Appender
from rt.net.addresses import Address
from rt.net.contexts import Contexts
from rt.node.agree.catch_up import GuardedDisk
from rt.node.host.pipeline import NodePipeline
from rt.node.ingest.damage import DamageFound
from rt.node.resources.node_directory import NodeDirectory
from rt.node.resources.peer_addresses import PeerAddresses
from rt.node.settings.node import NodeSettings


def node_scrubber(
    settings: NodeSettings,
    directory: NodeDirectory,
    pipeline: NodePipeline,
    places: PeerAddresses,
    contexts: Contexts,
) -> Scrubber:
    """Return the scrubber of a node's merged log and copies of sessions, without starting it."""
    guarded = GuardedDisk(directory.guard)

    def nodes() -> Sequence[Address]:
        return [each[0] for each in places.now.values()]

    def logs() -> list[Appender]:
        copy = pipeline.sequencer.view.waiting.copy
        # during a copy, only the copy has the log open; once the copy ends, it closes the log
        merged = pipeline.member.executor.appender if copy is None else copy.log
        sessions = [each.appender for each in pipeline.inboxes.every()]
        return sessions if merged is None else [merged, *sessions]

    def report(damage: CorruptLog, log: Appender) -> None:
        """Report a session's damaged copy, so that it is set aside; a single node keeps it."""
        if not pipeline.member.is_alone:
            pipeline.sequencer.mend(DamageFound(damage, log, scrubbed=True))

    fetch = FileFetch(directory.merged, nodes, contexts, guarded)
    ports = ScrubPorts(
        logs, lambda log, line: mend_file(fetch, log, line), report, pipeline.feeds.damaged,
        time.time_ns,
    )  # fmt: skip
    storage = settings.storage
    every_s = storage.scrub_every_s if storage.scrub_bytes_s else None
    scrub = Scrub(ports, ScrubRecord(directory.merged), every_s=every_s)
    return Scrubber(scrub, storage.scrub_bytes_s, fetch.stop)
