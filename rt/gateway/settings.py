"""GatewaySettings: where the gateway listens, and who may use it."""

from dataclasses import dataclass, field
from typing import Final

from rt.errors import Misuse
from rt.node.settings.http import HttpSettings, is_loopback

PORT: Final = 7480


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Where the gateway listens, and who may use it."""

    listen: str = field(
        default=f"127.0.0.1:{PORT}", metadata={"help": "Address to serve HTTP at, HOST:PORT."}
    )
    append: bool = field(
        default=False, metadata={"help": "Let programs create, append to and delete streams."}
    )
    tokens: str = field(
        default="",
        metadata={"help": "File of bearer tokens: NAME read|append SHA256 in each line."},
    )
    origins: tuple[str, ...] = field(
        default=(),
        metadata={"help": "Origin of web pages that may use the gateway; repeat for each."},
    )
    tls_cert: str = field(default="", metadata={"help": "PEM certificate, to serve HTTPS."})
    tls_key: str = field(default="", metadata={"help": "With --tls-cert: its private key."})
    tls_ca: str = field(
        default="",
        metadata={"help": "With --tls-cert: admit only clients with a certificate signed by it."},
    )

    def __post_init__(self) -> None:
        host, _ = self.http.address
        if not (self.tls_ca or self.tokens or is_loopback(host)):
            raise Misuse(
                f"listen is {self.listen}, which other machines can reach; give tls_ca or tokens, "
                "or use 127.0.0.1"
            )

    @property
    def http(self) -> HttpSettings:
        """The address and the certificates; `Misuse` if they are wrong."""
        return HttpSettings(
            http=self.listen, http_cert=self.tls_cert, http_key=self.tls_key, http_ca=self.tls_ca
        )
