"""RegisteredRoom: limits how many cursors and groups a stream and one owner may have."""

from collections.abc import Mapping

from rt.errors import Refused
from rt.net.authority.identity import PeerIdentity
from rt.node.notes.reading_group import ReadingGroup, groups_of_notes
from rt.node.notes.registered_cursor import (
    CURSORS_MAX,
    CURSORS_PER_OWNER_MAX,
    RegisteredCursor,
    cursors_of_notes,
)


def demand_room(notes: Mapping[str, str], identity: PeerIdentity) -> None:
    """Refuse a new cursor or group if the stream, or its owner, has reached the limit.

    Raises:
        Refused: there is no room.
    """
    every: list[RegisteredCursor | ReadingGroup] = [
        *cursors_of_notes(notes), *groups_of_notes(notes)
    ]  # fmt: skip
    own = sum(each.belongs_to(identity) for each in every)
    if len(every) >= CURSORS_MAX or own >= CURSORS_PER_OWNER_MAX:
        words = (
            f"{len(every)} of {CURSORS_MAX} cursors and groups are registered, {own} of "
            f"{CURSORS_PER_OWNER_MAX} by {identity.title}; forget one "
            "(rt cursor registered list, rt group list)"
        )
        raise Refused("cursors", words)
