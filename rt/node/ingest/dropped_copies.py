"""Dropped copies: removes a node's copies of sessions that an instruction has ended."""

from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_epochs import SessionEpoch
from sequencer.member import Member


def bind_copies(member: Member, sessions: Inboxes) -> None:
    """Take note of whose sessions are, as far as instructions have changed that.

    Args:
        member: says which.
        sessions: the copies on this node.

    Raises:
        OSError: the disk failed.
    """
    if changed := member.execution.copies.take_owned():
        ledger = member.executor.ledger
        owned = {each: ledger.opened.get(each) for each in changed}
        for session in sessions.bind(owned, ledger.index):
            member.lose(session)


def drop_copies(member: Member, sessions: Inboxes) -> None:
    """Drop the copies that instructions have ended; hold again those that were begun after them.

    What was merged of them is made durable first: it can be made from these copies only.
    What could not be dropped because the disk has no room is tried again by the next call. A node
    that restarts drops all that its state remembers, and holds no copy that was begun after an
    instruction which it has yet to execute again.

    Args:
        member: says which.
        sessions: the copies on this node.

    Raises:
        OSError: the disk failed.
    """
    dropped = member.execution.copies.take_dropped()
    if not (dropped or sessions.is_removing):
        return
    ledger = member.executor.ledger
    remembered = ledger.begun
    dropped = [each for each in dropped if each in remembered]
    if any(sessions.begun_after(each) < remembered[each][0] for each in dropped):
        # After a power cut what was merged of them is repeated, and the copies are gone by then.
        member.executor.sync()
    saved = member.execution.saved_index  # what comes after it may be executed again
    sessions.drop_all(
        {each: SessionEpoch(*remembered[each]) for each in dropped},
        lambda session, begun: session in remembered or begun.after > saved,
    )
    for session in dropped:
        member.lose(session)
        held = sessions.get(session)
        if held is not None and sessions.begun_after(session) <= ledger.index:
            member.hold(session, held.durable)
