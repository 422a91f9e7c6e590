"""RetentionReports: reports between a stream's nodes about disks and durability."""

import struct
from dataclasses import dataclass
from typing import Final

from rt.errors import PeerError
from rt.position import Position
from sequencer.member import REPORT, Member

_REPORT_S_MAX: Final = 25.0  # older reports do not count; at rest, one comes every 10 s
# The fields of `RetentionReport` in their order, without `heard_s`.
_REPORT: Final = struct.Struct("<QQQQQQq")


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """RetentionReport: one node's report about its disk and the durable part of its merged log."""

    total: int  # bytes of its file system: total, used and available
    used: int
    available: int
    emptied_to: Position  # its archived files before this are empty
    durable_index: int  # its merged log is durable up to this instruction
    settled_index: int  # a majority's merged logs are durable up to this, as far as it knows
    clock_ns: int
    heard_s: float = 0.0  # time of arrival, by the receiver's monotonic clock

    def encode(self) -> bytes:
        """Return the report's wire form."""
        return _REPORT.pack(
            self.total, self.used, self.available, self.emptied_to, self.durable_index,
            self.settled_index, self.clock_ns,
        )  # fmt: skip


def decode_retention_report(body: bytes, *, sender: str, heard_s: float) -> RetentionReport:
    """Decode another node's report.

    Raises:
        PeerError: the body does not have the length of a report.
    """
    if len(body) != _REPORT.size:
        raise PeerError(f"a report of {len(body)} bytes from {sender!r}")
    total, used, available, emptied_to, durable, settled, clock_ns = _REPORT.unpack(body)
    place = Position(emptied_to & ((1 << 63) - 1))
    return RetentionReport(total, used, available, place, durable, settled, clock_ns, heard_s)


class RetentionReports:
    """RetentionReports: each node's last report, and what a majority of them has durably.

    Attributes:
        durable_index: the instruction up to which this node's merged log is durable.
        settled_index: the instruction up to which a majority's merged logs are durable; never
            decreases.
    """

    def __init__(self, member: Member, durable_index: int) -> None:
        """Prepare.

        Args:
            member: this node's member, which sends its reports.
            durable_index: the instruction up to which everything is durable here.
        """
        self._member = member
        self.durable_index, self.settled_index = durable_index, 0
        self._latest: dict[str, RetentionReport] = {}

    def record(self, sender: str, report: RetentionReport) -> bool:
        """Record another node's report.

        Returns:
            Whether this node leads, and a majority now durably has a later instruction than before.
        """
        self._latest[sender] = report
        if sender == self._member.engine.leader:
            self._raise_settled(report.settled_index)
            return False
        return self._member.engine.leads and self._majority_durable() > self.settled_index

    def send(self, report: RetentionReport) -> None:
        """Record this node's own report, and send it to the others."""
        member = self._member
        self._latest[member.name] = report
        if member.engine.leads:
            self._raise_settled(self._majority_durable())
        data = report.encode()
        for each in member.holdings.others:
            member.send(each, REPORT, data)

    def has_durable(self, index: int) -> None:
        """Record that everything up to an instruction is durable here."""
        self.durable_index = index
        if not self._member.holdings.others:
            self._raise_settled(index)

    def living(self, now_s: float) -> dict[str, RetentionReport]:
        """Return each node's last report, if it arrived in the last 25 s."""
        return {
            name: report
            for name, report in self._latest.copy().items()
            if now_s - report.heard_s < _REPORT_S_MAX
        }

    def _raise_settled(self, index: int) -> None:
        self.settled_index = max(self.settled_index, index)

    def _majority_durable(self) -> int:
        """Return the instruction up to which a majority's merged logs are durable."""
        durable = {name: report.durable_index for name, report in self._latest.items()}
        return self._member.holdings.reached_by_majority(durable)
