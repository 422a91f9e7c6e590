"""Assembles the sequencer's member of a configured node."""

import logging
import time
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Final

from rt.errors import Misuse
from rt.format import manifest
from rt.format.manifest import LogIdentity
from rt.log.files.identity import new_identity
from rt.log.write.appender import Appender
from rt.log.write.recent_frames import FrameMemory
from rt.names import MERGED_NAME
from rt.node.resources.node_directory import MERGED, NodeDirectory
from rt.node.settings.agreement import engine_of
from rt.node.settings.node import NodeSettings
from rt.position import Position
from sequencer.execution.execution import Readers
from sequencer.execution.executor import Executor
from sequencer.journal.journal import Journal, Opened
from sequencer.journal.starts import (
    NONCE_END,
    begin_start,
    read_departed,
    read_listed,
    read_memories,
    write_departed,
    write_memories,
)
from sequencer.ledger.format_level import may_carry
from sequencer.ledger.ledger import Ledger, decode_ledger
from sequencer.member import Member
from sequencer.membership import Dial
from sequencer.peers.departed import Departed
from sequencer.peers.restart_check import RestartCheck
from sequencer.planning.carried import JOURNAL_BYTES_MAX
from sequencer.planning.planner import Planner
from sequencer.planning.session_log import SessionLogs
from sequencer.raft.consensus import Configuration, Snapshot

_log: Final = logging.getLogger("rt.node")


def build_member(
    settings: NodeSettings,
    directory: NodeDirectory,
    opened: Opened,
    *,
    readers: Readers,
    received: Callable[[str], Position],
    copy: Callable[[str], Appender | None],
    memory: FrameMemory,
    dial: Dial,
) -> Member:
    """Return a node's member, after recovering the member's state and the merged log.

    Messages that the member sends are lost until `Member.transmit` is set.

    Args:
        settings: the node's settings.
        directory: holds the copies of sessions and the merged log.
        opened: the journal and the state it recovered.
        readers: readers of the merged log.
        received: returns the end of a session's copy here, durable or not.
        copy: returns the appender of a session's copy here.
        memory: the memory for frames that were merged last.
        dial: called with the addresses of all other nodes, by name, whenever they change.

    Raises:
        CorruptLog: the merged log is damaged.
        Misuse: the configuration lists no other node, but the log has other members.
    """
    state, agreement, names = opened.state, settings.agreement, settings.member_names
    ledger = _ledger_of(state.snapshot, settings.storage.file_bytes)
    logs = SessionLogs(directory.copies_disk, directory.inputs, copy)
    engine = engine_of(agreement.consensus)(
        settings.name, settings.places or names, chance=SystemRandom(), state=state,
        cluster=settings.founding_name, settings=agreement.timers,
    )  # fmt: skip
    _compare_members(settings, engine.members)
    executor = Executor(
        directory.disk_of(MERGED), directory.merged, merged_identity(settings), ledger, logs,
        received=received, alone=not engine.members.keys() - {settings.name}, memory=memory,
    )  # fmt: skip
    carrying = Carrying(executor, opened.journal) if agreement.carry else lambda: False
    return Member(
        settings.name,
        names,
        engine=engine,
        journal=opened.journal, restart_check=_restart_check(settings, directory, opened),
        executor=executor,
        planner=Planner(logs, received, carrying),
        dial=dial,
        departed=_departed(directory, opened),
        now_ns=time.time_ns,
        readers=readers,
    )  # fmt: skip


class Carrying:
    """Carrying: tells whether instructions may carry small updates.

    They may if every member can read such instructions and the journal has room for the bytes. The
    answer is asked for several times per message, so the level is kept until the notes change.
    """

    def __init__(self, executor: Executor, journal: Journal) -> None:
        """Use the level in the executor's ledger, and the size of the journal."""
        self._executor, self._journal = executor, journal
        self._notes: Mapping[str, str] | None = None  # where the level was last read from
        self._is_level = False

    def __call__(self) -> bool:
        """Return whether instructions may carry small updates now."""
        notes = self._executor.ledger.notes
        if notes is not self._notes:  # the mapping is replaced, never changed
            self._notes, self._is_level = notes, may_carry(notes)
        return self._is_level and self._journal.size < JOURNAL_BYTES_MAX


def _compare_members(settings: NodeSettings, members: Configuration) -> None:
    """Log a warning if the members in the configuration file differ from those in the log.

    Raises:
        Misuse: the file lists no other node, but the log does. This node would not connect to them.
    """
    listed = settings.places
    if settings.is_alone and members.keys() - {settings.name}:
        names = ", ".join(sorted(members))
        raise Misuse(
            f"node {settings.name} is not alone: its log has the members {names}, but its "
            "configuration lists no other node; give it members again"
        )
    actual = {name: seat.address or listed.get(name, "") for name, seat in members.items()}
    if listed and listed != actual:
        texts = ", ".join(f"{name}={address}" for name, address in sorted(actual.items()))
        _log.warning("the members are %s by this node's log; its configuration differs", texts)


def _restart_check(
    settings: NodeSettings, directory: NodeDirectory, opened: Opened
) -> RestartCheck:
    """Record this start durably; return the check that detects if this state is an older copy.

    Call this before anything is sent to another node.
    """
    disk, path = directory.disk, directory.state
    claim = begin_start(disk, path, opened.state, SystemRandom().randrange(1, NONCE_END))
    others = [name for name in settings.member_names if name != settings.name]
    memories = read_memories(disk, path)
    return RestartCheck(others, claim, memories, lambda every: write_memories(disk, path, every))


def _departed(directory: NodeDirectory, opened: Opened) -> Departed:
    """Return the nodes removed from the cluster, with what this node has saved about them."""
    disk, path = directory.disk, directory.state
    return Departed(
        read_departed(disk, path),
        lambda names, members: write_departed(disk, path, names, members),
        founders=opened.state.founders,
        members=read_listed(disk, path),
    )


def merged_identity(settings: NodeSettings) -> LogIdentity:
    """Return the merged log's identity, which all nodes of a cluster share.

    A single node without a cluster id gets a new identity.
    """
    if log_id := settings.storage.log_id or settings.cluster_id:
        return LogIdentity(manifest.MERGED, settings.stream, MERGED_NAME, log_id, 0)
    return new_identity(manifest.MERGED, settings.stream, MERGED_NAME, created_ns=time.time_ns())


def _ledger_of(snapshot: Snapshot | None, file_bytes: int) -> Ledger:
    if snapshot is None:
        return Ledger(file_bytes_max=file_bytes)
    return decode_ledger(snapshot.data)
