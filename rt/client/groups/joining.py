"""Joining: makes a program a member of a group."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from rt.client.groups.claims import Claims
from rt.client.groups.group import Group, made_up_member
from rt.client.groups.group_subscriber import GroupSubscriber, MemberReading
from rt.client.readers.stream_copy import StreamCopy
from rt.errors import RtError
from rt.log.files.disk import make_private_directory
from rt.log.files.identity import read_log_identity
from rt.log.notify.watch import Watch
from rt.log.read.start import Start, start_text
from rt.net.admin import AdminClient, reading_answers
from rt.position import Position

Letters = Callable[[str, bytes, bytes], object]


def join(
    group: str | Group,
    begin: Start,
    wanted: MemberReading,
    copy: StreamCopy,
    nodes: tuple[AdminClient, Letters],
) -> GroupSubscriber:
    """Join a group, or create it.

    Args:
        group: its name, or all of its settings.
        begin: where a new group begins.
        wanted: which messages are wanted, and how they are acknowledged.
        copy: the copy to read.
        nodes: a client for requests, which is closed with the subscriber; and a function that
            publishes a dead letter, given session, key and payload.

    Raises:
        Refused: the group has other settings, or belongs to others.
        RtError: no node answers, or none leads; also the errors of `StreamCopy.begin`.
    """
    group = Group(group) if isinstance(group, str) else group
    asking, letters = nodes
    member = group.member or made_up_member()
    with ExitStack() as undo:
        undo.callback(asking.close)
        joined = asking.ask({"do": "group-join", "start": start_text(begin), **group.agreed_on()})
        with reading_answers():
            position = Position.parse(str(joined["position"]))
        until = None if wanted.follow else _latest_end(asking, group.name)
        copy.begin(position, wanted.timeout_s, follow=wanted.follow)
        make_private_directory(copy.directory)
        watch = Watch()
        undo.callback(watch.close)
        watch.add(copy.directory)
        trouble = wanted.trouble._replace(on_gap="raise")  # a member handles each gap itself
        member_of = GroupSubscriber(
            group,
            Claims(
                asking, group, member, copy.loop(), position=position, follow=wanted.follow,
                log=partial(_log_of, copy.directory),
            ),
            lambda place: copy.reader(place, **trouble._asdict()), wanted, watch,
            until=until,
            publish=partial(letters, group.letters_session(member)),
        )  # fmt: skip
        undo.pop_all()
    return member_of


def _log_of(directory: str) -> str:
    """Return the id of the log that a copy has now; "" while it has none."""
    try:
        identity = read_log_identity(directory)
    except (OSError, RtError):  # its reader says what is wrong
        return ""
    return identity.id if identity is not None else ""


def _latest_end(asking: AdminClient, name: str) -> Position:
    """Return where the stream ends now; a node of an earlier version may answer an older end."""
    answer = asking.ask({"do": "groups", "name": name, "latest": True})
    with reading_answers():
        return Position.parse(str(answer["end"]))
