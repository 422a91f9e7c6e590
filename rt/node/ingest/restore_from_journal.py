"""Restores, from the journal, bytes that copies of sessions have lost in a power cut.

The journal carries small updates, and their copies are synced later. If a node is alone, no other
node has these bytes, and the publisher may have deleted them. After the restore, such a node's
copies contain all that was merged, so a copy that ends before the merged end is damaged, not torn.
"""

import logging
from collections.abc import Iterable
from typing import Final

from rt.errors import PeerError
from rt.node.ingest.inboxes import Inboxes
from sequencer.ledger.instruction import Instruction, Merge, Slice, decode_instruction
from sequencer.planning.carried import frames_of
from sequencer.raft.consensus import Entry, EntryKind

_log: Final = logging.getLogger("rt.node")


def restore_from_journal(inboxes: Inboxes, entries: Iterable[Entry]) -> None:
    """Append to each copy the bytes past its end that the entries carry.

    Args:
        inboxes: the copies, opened, which no other thread writes to yet.
        entries: the entries that the journal has recovered.

    Raises:
        OSError: the bytes could not be written.
    """
    for entry in entries:
        if entry.kind is EntryKind.COMMAND:
            instruction = read_instruction(entry)
            for each in instruction.slices if isinstance(instruction, Merge) else ():
                if each.carried and inboxes.begun_after(each.session) <= entry.index:
                    _restore(inboxes, each)


def read_instruction(entry: Entry) -> Instruction | None:
    """Return an entry's instruction; None if it cannot be read, and so has no effect."""
    try:
        return decode_instruction(entry.command)
    except PeerError:
        return None


def _restore(inboxes: Inboxes, each: Slice) -> None:
    inbox = inboxes.get(each.session)
    if inbox is None or not each.first <= inbox.appender.end < each.end:
        return
    appender, end = inbox.appender, inbox.appender.end
    lacking = [heading for heading in frames_of(each) or () if heading.header.position >= end]
    if end.file != each.first.file or not lacking or lacking[0].header.position != end:
        return
    if not appender.is_open:
        appender.begin_file(end)
    headers, after = [heading.header for heading in lacking], appender.walk.copy()
    for header in headers:
        after.step(header)
    appender.append((each.carried[end - each.first :],), headers, after)
    inboxes.sync_now(inbox)
    begin = inbox.restored[0] if inbox.restored else end
    inbox.restored = begin, appender.end
    _log.warning(
        "session %s: the disk had lost its copy from %s to %s, as in a power cut; that was put "
        "back from the journal", each.session, begin, appender.end,
    )  # fmt: skip
