"""NodeGroups: hands ranges of a stream to the members of groups, on the leading node."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rt.errors import CorruptLog, Misuse, Refused
from rt.format.message import Batch
from rt.log.files.archived import place_after
from rt.log.files.directory import LogDirectory
from rt.log.read.reader import Reader
from rt.log.read.start import parse_start
from rt.net.authority.identity import PeerIdentity
from rt.net.exchange import Fields
from rt.node.agree.latest import is_provisional
from rt.node.agree.steps import Steps
from rt.node.agree.view import NodeView
from rt.node.notes.reading_group import (
    GROUP_NOTE,
    RangeClaim,
    ReadingGroup,
    parse_reading_group,
)
from rt.node.readers.changed_notes import Decide
from rt.node.readers.claims_heard import ClaimsHeard
from rt.node.readers.cursor_lag import lag_of
from rt.node.readers.reader_notes import MS_NS, ReaderNotes, demand_owner
from rt.position import Position

MESSAGES_MAX: Final = 4096  # in one range
_BYTES_MAX: Final = 1 << 20  # a range ends after this many bytes
_MEMBER_LENGTH_MAX: Final = 100
_ROUNDS: Final = 2  # a member gets half its share of the rest, so all finish together


class Work(NamedTuple):
    """Work: a member's validated request."""

    member: str
    held: list[int]
    done: list[tuple[int, Position]]
    failed: list[tuple[int, Position, float]]
    given_back: list[int]
    messages: int
    at_least: int
    is_idle: bool


class Worked(NamedTuple):
    """Worked: the outcome of a member's request.

    Attributes:
        group: the group afterwards.
        handed_out: numbers of the claims that the member received.
        lost: numbers of claims in the request that the member no longer has.
        is_agreed: whether a compare-and-set has proved that this node knew the group's current
            state.
    """

    group: ReadingGroup
    handed_out: list[int]
    lost: list[int]
    is_agreed: bool


class NodeGroups(ReaderNotes[ReadingGroup]):
    """NodeGroups: the groups of a stream, on the leading node.

    A range is handed out by a compare-and-set in the ledger, so even if two nodes believe that they
    lead, only one member gets it. Only the leader knows whether a holder is alive, from signs of
    life since it became leader; if the holder is not, the leader hands its range out again.

    Members act irrevocably on two answers: that a claim is lost, and that everything is done. So
    the leader first makes sure that its state is the latest, unless a compare-and-set has just
    proved that.

    Threads: any connection's thread may call `hear` and `show`; the other methods change groups,
        one thread at a time. For `_heard` see `ClaimsHeard`.
    """

    def __init__(
        self,
        view: Callable[[], NodeView],
        decide: Decide,
        latest: Callable[[], Steps[None]],
        log: Callable[[], LogDirectory],
        may_lease: Callable[[PeerIdentity], bool],
        *,
        heard: ClaimsHeard,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Read and change groups; most arguments are as for `ReaderNotes`.

        `may_lease` returns whether a peer may hold files; `heard` has the members' signs of life.
        """
        super().__init__(
            GROUP_NOTE, parse_reading_group, view, decide, latest=latest, log=log, now_ns=now_ns
        )
        self._may_lease = may_lease
        self._heard = heard

    def join(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Create a group at `start`, or join an existing one with the same settings."""
        name = str(request.get("name"))
        parse_start(str(request.get("start", "earliest")))  # `Misuse` before anything is asked
        wanted = ReadingGroup(
            name, identity.name, identity.role.value,
            silence_s=_number(request, "silence_s"),
            max_deliveries=int(_number(request, "max_deliveries")),
            dead_letters=str(request.get("dead_letters", "")),
            pin_bytes=int(_number(request, "pin_bytes")),
        )  # fmt: skip
        if wanted.pin_bytes and not self._may_lease(identity):
            raise Refused("role", f"{identity.title} is not granted leases, and so may not pin")
        # On the latest state, since a member without `follow` stops at the end returned here.
        begin = min((yield from self.resolved(request, "earliest")), self._view().end)

        def change(known: ReadingGroup | None) -> ReadingGroup:
            if known is None:
                self.demand_room(identity)
                # Members of a forgotten group of this name may still report: no number may repeat.
                return replace(wanted, next=begin, number=self._now_ns() // MS_NS)
            demand_owner(known, identity)
            _demand_same(known, wanted)
            return known

        group, _ = yield from self._change(name, change, may_repeat=True)
        return {**_facts(group), "merged_end": str(self._view().end)}

    def hear(self, request: Fields, identity: PeerIdentity) -> None:
        """Record that the member that sent this request is alive.

        Call this before `work`, which may have to wait for the changes of other members. If this
        node does not know the group yet, nothing is recorded, and `work` refuses the request.
        """
        name, said = str(request.get("name")), _work(request)
        self._heard.begin_term(self._view().engine.term)
        group = self.get(name)
        if group is None or not group.belongs_to(identity):
            return
        for number in said.held:
            if group.find_claim(number) is not None:
                self._heard.hear(name, number)
        self._heard.member(name, said.member)

    def work(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Apply a member's reports on its claims, and hand out a range if it asks for one."""
        name, said = str(request.get("name")), _work(request)
        is_enough = request.get("latest") is True or is_provisional(request)
        worked = yield from self._worked(name, said, identity)
        if worked.lost and not (worked.is_agreed or is_enough):
            yield from self._latest()
            worked = yield from self._worked(name, said, identity)
        claims = [each for each in worked.group.claims if each.number in worked.handed_out]
        for claim in claims:
            self._heard.hear(name, claim.number)
        self._heard.keep(name, {each.number for each in worked.group.claims})
        is_done = bool(said.messages) and not worked.group.claims
        if is_done and not is_enough:
            is_done = yield from self._is_done(name, said)
        return {
            "claims": [_claim_facts(worked.group, each) for each in claims], "lost": worked.lost,
            "position": str(worked.group.position), "is_done": is_done,
        }  # fmt: skip

    def _is_done(self, name: str, said: Work) -> Steps[bool]:
        """Whether a group has handled everything that any node has merged by now."""
        yield from self._latest()
        group = self.existing(self.get(name), name)
        return not group.claims and self._range_end(group.next, said, 1) <= group.next

    def _worked(self, name: str, said: Work, identity: PeerIdentity) -> Steps[Worked]:
        handed_out, lost, freed = list[int](), list[int](), list[tuple[int, float]]()

        def change(known: ReadingGroup | None) -> ReadingGroup:
            group = self.existing(known, name)
            demand_owner(group, identity)
            self._heard.begin_term(self._view().engine.term)
            handed_out.clear()
            freed.clear()
            lost[:] = [each for each in _named(said) if group.find_claim(each) is None]
            group = self._taken(group, said, freed, lost)
            more = self._given(group, said) if said.messages else None
            if more is not None:
                handed_out.append(more.number)
            return more or group

        group, is_agreed = yield from self._change(name, change, may_repeat=True)
        for number, delay_s in freed:
            self._heard.free(name, number, delay_s)
        return Worked(group, handed_out, lost, is_agreed)

    def reset(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Move a group to any place of the stream; its members lose their claims."""
        name = str(request.get("name"))
        position = min((yield from self.resolved(request)), self._view().end)

        def change(known: ReadingGroup | None) -> ReadingGroup:
            group = self.existing(known, name)
            demand_owner(group, identity, or_operator=True)
            return group.moved_to(position)

        group, _ = yield from self._change(name, change)
        return _facts(group)

    def forget(self, request: Fields, identity: PeerIdentity) -> Steps[Fields]:
        """Remove a group; its members are refused from now on."""
        forgotten = yield from super().forget(request, identity)
        self._heard.forget(str(forgotten["forgotten"]))
        return forgotten

    def show(self, request: Fields, _identity: PeerIdentity) -> Fields:
        """Return all groups, or the named one, with lag and claims; any node answers."""
        view = self._view()
        groups = self.wanted(view.notes, request)
        with closing(self._log()) as log:
            rows = [
                {
                    **_facts(each), **lag_of(log, each.position, view),
                    "members": self._heard.members(each.name, each.silence_s),
                }
                for each in groups
            ]  # fmt: skip
        return {"groups": rows, "end": str(view.end)}

    def _change(
        self,
        name: str,
        change: Callable[[ReadingGroup | None], ReadingGroup],
        *,
        may_repeat: bool = False,
    ) -> Steps[tuple[ReadingGroup, bool]]:
        """Change a group that must exist afterwards; see `ReaderNotes.change`."""
        group, is_agreed = yield from self.change(name, change, may_repeat=may_repeat)
        return self.existing(group, name), is_agreed

    def _taken(
        self, group: ReadingGroup, said: Work, freed: list[tuple[int, float]], lost: list[int]
    ) -> ReadingGroup:
        """Return the group after a member's reports; reports about lost claims are ignored.

        Claims that have no holder any more are added to `freed`, each with its delay. The caller
        uses them only once the change is made, since another change may come first and use the same
        number. If the group is full, it cannot split off a rejected message: the member loses the
        whole claim, whose number is added to `lost`.
        """
        for number, position, delay_s in said.failed:
            claim = group.find_claim(number)
            if claim is not None and position >= claim.first:  # otherwise reported before
                group = group.failed(claim, position)
                freed.append((group.number, delay_s))
                if group.claims[-1].end > position + 1:
                    lost.append(number)
        for number, position in said.done:
            if (claim := group.find_claim(number)) is not None:
                group = group.done(claim, position)
        for number in said.given_back:
            if (claim := group.find_claim(number)) is not None:
                group = group.given_back(claim)
                freed.append((number, 0.0))
        return group

    def _given(self, group: ReadingGroup, said: Work) -> ReadingGroup | None:
        """Return the group with one more range handed out, as its last claim; None if none can be.

        A range that was handed out often is suspect. It goes only to a member that holds nothing
        else, and this member gets nothing more meanwhile: if the member dies, only this range can
        be the cause.
        """
        held = [each for each in group.claims if each.number in said.held]
        if not said.is_idle and any(group.is_suspect(each) for each in held):
            return None
        for claim in group.claims:
            if claim.number not in said.held and self._heard.is_free(group, claim.number):
                again = group.handed_out_again(claim)
                is_alone = said.is_idle or not group.is_suspect(again.claims[-1])
                return again if is_alone else None
        if not group.has_room:
            return None
        members = len(self._heard.members(group.name, group.silence_s))
        end = self._range_end(group.next, said, max(1, members) * _ROUNDS)
        return group.handed_out(end) if end > group.next else None

    def _range_end(self, begin: Position, said: Work, parts: int) -> Position:
        """Return the end of a range of `said.messages` messages, or of one share if that is less.

        A share is 1/`parts` of the messages left, but at least `said.at_least`, which keep the
        member busy during a request.
        """
        view, end, size = self._view(), begin, 0
        with closing(self._log()) as log, closing(Reader(log, begin)) as reader:
            left = said.messages
            try:
                while left > 0 and size < _BYTES_MAX:
                    found = reader.poll()
                    if found is None:
                        _demand_whole(log, reader.position, view.end)
                        break
                    if not isinstance(found, Batch):
                        continue
                    if found.position >= view.end:
                        break
                    if end == begin:
                        part = (view.number - found.number) // parts
                        left = min(left, max(said.at_least, part))
                    taken, size = min(len(found), left), size + len(found.body)
                    left -= taken
                    end = Position(found.position + found.first + taken)
            except CorruptLog as error:
                raise Refused("corrupt", f"the merged log is damaged at {error.position}") from None
        return end


def _demand_whole(log: LogDirectory, read_to: Position, end: Position) -> None:
    """Refuse if the log here ends before its agreed end, because it is being copied."""
    if place_after(log.manifest, read_to) < end:
        words = f"the merged log of this node ends at {read_to}, and is being copied up to {end}"
        raise Refused("undecided", f"{words}; ask again")


def _demand_same(known: ReadingGroup, wanted: ReadingGroup) -> None:
    for name in ("silence_s", "max_deliveries", "dead_letters", "pin_bytes"):
        ours, theirs = getattr(known, name), getattr(wanted, name)
        if ours != theirs:
            words = f"group {known.name!r} was begun with {name} = {ours!r}, not {theirs!r}"
            raise Refused("settings", f"{words}; use that, or forget the group to begin another")


def _named(said: Work) -> list[int]:
    done, failed = (each[0] for each in said.done), (each[0] for each in said.failed)
    return list(dict.fromkeys([*said.held, *done, *failed, *said.given_back]))


def _work(request: Fields) -> Work:
    """Validate a member's request.

    Raises:
        Misuse: the request is malformed.
    """
    member = str(request.get("member", ""))
    if not 0 < len(member) <= _MEMBER_LENGTH_MAX or not member.isprintable():
        raise Misuse("a member has a name of up to 100 printable characters")
    try:
        return Work(
            member,
            [int(each) for each in request.get("held", [])],
            [(int(number), Position(place)) for number, place in request.get("done", [])],
            [(int(number), Position(place), min(3600.0, max(0.0, float(delay_s))))
             for number, place, delay_s in request.get("failed", [])],
            [int(each) for each in request.get("given_back", [])],
            max(0, min(MESSAGES_MAX, int(request.get("messages", 0)))),
            max(1, int(request.get("at_least", 1))),
            bool(request.get("is_idle", True)),
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError) as error:
        raise Misuse(f"a member says numbers of claims, and positions: {error}") from None


def _number(request: Fields, field: str) -> float:
    value = request.get(field, 0)
    if type(value) not in (int, float) or not 0 <= value < 2**53:
        raise Misuse(f"{field} is a number")
    number: float = value
    return number


def _claim_facts(group: ReadingGroup, claim: RangeClaim) -> dict[str, Any]:
    return {
        "number": claim.number, "first": int(claim.first), "end": int(claim.end),
        "deliveries": claim.deliveries,
        "is_dead": group.is_dead(claim),
    }  # fmt: skip


def _facts(group: ReadingGroup) -> dict[str, Any]:
    return {
        "group": group.name, "owner": group.owner, "position": str(group.position),
        "next": str(group.next), "silence_s": group.silence_s,
        "max_deliveries": group.max_deliveries, "dead_letters": group.dead_letters,
        "pin_bytes": group.pin_bytes, "stored_ns": group.stored_ns,
        "claims": [
            {"number": each.number, "first": str(each.first), "end": str(each.end),
             "deliveries": each.deliveries}
            for each in group.claims
        ],
    }  # fmt: skip
