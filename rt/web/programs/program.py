"""ShownProgram: what the HTTP pages of a pusher and a puller have in common."""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from prometheus_client.core import Metric

from rt.errors import Misuse
from rt.names import shown
from rt.net.authority.certificates import CertificateFiles, expires_s
from rt.version import __version__
from rt.web.serving.collector import gauge
from rt.web.serving.recent import RecentEvents
from rt.web.serving.site import Fields

_NO_FLOW: Final = {"bytes_per_s": 0, "messages_per_s": 0, "bytes": 0, "messages": 0}


@dataclass(frozen=True, slots=True)
class ShownProgram:
    """The program that a site shows.

    Attributes:
        kind: `push` or `pull`.
        stream: the stream that it ships or copies.
        certificate: its certificate files.
        events: the lines of its log.
        began_ns: when it started.
    """

    kind: str
    stream: str
    certificate: CertificateFiles
    events: RecentEvents
    began_ns: int

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics that every such program has."""
        version = (__version__, platform.python_version(), self.kind, "", "")
        labels = ("version", "python", "kind", "cluster", "node")
        words = "Always 1; the labels say what runs here."
        yield gauge("rt_build_info", words, {version: 1}, labels)
        ends = {("own",): expires_s(self.certificate.cert), ("ca",): expires_s(self.certificate.ca)}
        words = "When a certificate of this program expires."
        yield gauge("rt_certificate_expiry_timestamp_seconds", words, ends, ("use",))

    def overview(self, level: str, words: str) -> Fields:
        """Return the fields of the overview that every such program has."""
        overview = no_flow_overview(self.kind, self.stream, level, words, self.began_ns)
        return overview | {"events": self.events.latest(60)}


class ProgramSite:
    """ProgramSite: what is the same in each program's site (`rt.web.serving.site.Site`)."""

    def __init__(self, kind: str, stream: Callable[[], str]) -> None:
        """Show a program of this kind, which has one stream."""
        self._kind = kind
        self._stream = stream

    def start(self) -> None:
        """Do nothing: the command watches its client with or without an HTTP port."""

    def stop(self) -> None:
        """Do nothing: there is nothing to stop."""

    def part(self, stream: str) -> Self:
        """Return this site, for its own stream or ""."""
        if stream not in ("", self._stream()):
            raise Misuse(f"this rt {self._kind} has no stream {shown(stream)}")
        return self

    def sessions(self, _search: str, _limit: int) -> Fields:
        """Return none."""
        return {"total": 0, "found": 0, "rows": []}

    def clients(self) -> Fields:
        """Return none: clients connect to nodes."""
        return {"result": {"node": "", "publishers": {}, "subscribers": {}}}

    def history(self) -> tuple[int, list[str]]:
        """Return none: it has no merged log."""
        return time.time_ns(), []

    def files(self) -> list[Fields]:
        """Return none: it has no merged log."""
        return []


def no_flow_overview(kind: str, stream: str, level: str, words: str, began_ns: int) -> Fields:
    """Return the fields of the overview that any program other than a node has."""
    return {
        "kind": kind, "name": f"rt {kind}", "stream": stream,
        "version": __version__, "at_ns": time.time_ns(), "began_ns": began_ns,
        "verdict": {"level": level, "text": words}, "leader": "", "term": 0,
        "flow": {"received": _NO_FLOW, "merged": _NO_FLOW, "sent": _NO_FLOW},
        "sessions": {"total": 0, "troubled": 0, "rows": []}, "clients": [],
        "merged_end": "",
    }  # fmt: skip


def tile(name: str, value: str, note: str, rate: float) -> Fields:
    """Return one of the figures at the top of the page."""
    return {"name": name, "value": value, "note": note, "rate": rate}
