"""Dropped copies: removes a node's copies of sessions that an instruction has ended."""

from rt.node.ingest.inboxes import Inboxes
from rt.node.ingest.session_epochs import SessionEpoch
from sequencer.member import Member


def bind_copies(member: Member, sessions: Inboxes) -> None:
    """Apply changes of session ownership to this node's copies.

    Args:
        member: this node's member, which knows the changes.
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
    """Remove the copies of sessions that instructions have ended.

    The merged log is synced first: without the copies, its messages could not be rebuilt. If the
    disk is full, the next call continues. A copy begun after its session was ended is kept, and its
    end is recorded again.

    After a restart, every ended session that the state remembers is handled. A copy is not recorded
    if it was begun after an instruction that this node has yet to execute again.

    Args:
        member: this node's member, which knows the ended sessions.
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
        # After a power cut their messages would be merged again, but the copies would be gone.
        member.executor.sync()
    saved = member.execution.saved_index  # later instructions may be executed again
    sessions.drop_all(
        {each: SessionEpoch(*remembered[each]) for each in dropped},
        lambda session, begun: session in remembered or begun.after > saved,
    )
    for session in dropped:
        member.lose(session)
        if (held := sessions.copy_as_of(session, ledger.index)) is not None:
            member.record_durable(session, held.durable)
