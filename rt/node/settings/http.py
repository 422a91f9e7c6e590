"""HttpSettings: where a process serves its metrics, its health and its page."""

import ipaddress
from dataclasses import dataclass, field

from rt.errors import Misuse

_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """HttpSettings: the HTTP port of a long-running process; there is none without `http`."""

    http: str = field(
        default="",
        metadata={"help": "Show metrics, health and a page at this HOST:PORT (read-only)."},
    )
    http_cert: str = field(
        default="", metadata={"help": "With --http: PEM certificate, to serve HTTPS."}
    )
    http_key: str = field(default="", metadata={"help": "With --http-cert: its private key."})
    http_ca: str = field(
        default="",
        metadata={"help": "With --http-cert: admit only clients with a certificate signed by it."},
    )

    def __post_init__(self) -> None:
        if not self.http:
            if self.http_cert or self.http_key or self.http_ca:
                raise Misuse("http_cert, http_key and http_ca go with http, such as 0.0.0.0:9420")
            return
        host, _ = self.address
        if bool(self.http_cert) != bool(self.http_key):
            raise Misuse("http_cert and http_key go together")
        if self.http_ca and not self.http_cert:
            raise Misuse("http_ca goes with http_cert: without HTTPS no client can be verified")
        if not (self.http_cert or is_loopback(host)):
            raise Misuse(
                f"http is {self.http}, which other machines can reach; give http_cert and http_key "
                "to serve HTTPS there, or use 127.0.0.1"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.http.rpartition(":")
        host = host.strip("[]")
        if not (host and port.isascii() and port.isdecimal() and int(port) <= 65535):
            raise Misuse(
                f"http is not an address: {self.http!r}; use host:port, such as 127.0.0.1:9420"
            )
        return host, int(port)

    @property
    def scheme(self) -> str:
        """`https` or `http`."""
        return "https" if self.http_cert else "http"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES
