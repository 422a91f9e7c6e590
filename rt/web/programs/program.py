"""ShownProgram: the parts that the HTTP pages of a pusher and a puller share."""

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
from rt.web.serving.site import Fields, Site

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
        """Yield the metrics that a pusher and a puller share."""
        yield build_info(self.kind)
        ends = {("own",): expires_s(self.certificate.cert), ("ca",): expires_s(self.certificate.ca)}
        words = "When a certificate of this program expires."
        yield gauge("rt_certificate_expiry_timestamp_seconds", words, ends, ("use",))

    def overview(self, level: str, words: str) -> Fields:
        """Return the fields of the overview that a pusher and a puller share."""
        overview = no_flow_overview(self.kind, self.stream, level, words, self.began_ns)
        return overview | {"events": self.events.latest(60)}


def build_info(kind: str) -> Metric:
    """Return the metric whose labels name the program and its version."""
    version = (__version__, platform.python_version(), kind, "", "")
    labels = ("version", "python", "kind", "cluster", "node")
    return gauge("rt_build_info", "Always 1; the labels say what runs here.", {version: 1}, labels)


class ProgramSite(Site):
    """The site of a program that has one stream: a pusher, a puller or an export."""

    def __init__(self, kind: str, stream: Callable[[], str]) -> None:
        """Show a program of this kind; `stream` returns the name of its stream."""
        self._kind = kind
        self._stream = stream

    def part(self, stream: str) -> Self:
        """Return this site, if `stream` is its own stream or ""."""
        if stream not in ("", self._stream()):
            raise Misuse(f"this rt {self._kind} has no stream {shown(stream)}")
        return self


def no_flow_overview(kind: str, stream: str, level: str, words: str, began_ns: int) -> Fields:
    """Return the overview of a program that is not a node; its figures of flow are 0."""
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
