"""The members of a cluster according to its log, independent of the engine's own list."""

from dataclasses import replace

from sequencer.raft.consensus import FOUNDER, EntryKind, Seat
from sequencer.raft.core import Core
from sequencer.raft.entries import unpack_configuration, unpack_member


def configuration_before(
    core: Core, index: int, founders: tuple[str, ...]
) -> tuple[dict[str, Seat], int]:
    """Return the configuration before an entry, by the log, and the entry that made it so."""
    newest = core.snapshots.newest
    start, roster = (newest.index, newest.roster) if newest else (0, ())
    seats, at = dict(roster) or dict.fromkeys(founders, Seat(FOUNDER)), 0
    for entry in core.log.between(start + 1, index - 1):
        if entry.kind is EntryKind.CONFIGURATION:
            seats, at = unpack_configuration(entry.command)[0], entry.index
        elif entry.kind is EntryKind.MEMBER:
            name, incarnation = unpack_member(entry.command)
            seats, at = {**seats, name: replace(seats[name], incarnation=incarnation)}, entry.index
    return seats, at


def voters_of(core: Core, founders: tuple[str, ...], index: int) -> set[str]:
    """Return the voters according to the log up to an entry."""
    seats, _ = configuration_before(core, index + 1, founders)
    return {name for name, seat in seats.items() if seat.votes}
