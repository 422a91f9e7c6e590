"""StreamEntry: a further stream in a node's settings, with settings of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from rt.config.settings import kinds_of
from rt.errors import Misuse
from rt.names import parse_stream, shown
from rt.node.settings.storage import StorageSettings

# The founding log belongs to the cluster's first stream only.
_OWN: Final = {
    name: kind for name, kind in kinds_of(StorageSettings).items() if not name.startswith("founded")
}


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """StreamEntry: an entry of `streams`: `NAME` or `NAME=ROOT`, then any `;SETTING=VALUE`.

    Attributes:
        name: the stream's name.
        root: its directory; "" for the node's.
        own: its settings that differ from the node's.
    """

    name: str
    root: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an entry.

        Raises:
            Misuse: the entry is malformed; the message names the stream and the setting.

        >>> StreamEntry.parse("ships=/data2/rt;reserve=20Gi").own
        {'reserve': 21474836480}
        """
        stream, *settings = text.split(";")
        name, _, root = stream.partition("=")
        return cls(parse_stream(name), root, dict(_setting(name, each) for each in settings))

    def storage(self, node: StorageSettings) -> StorageSettings:
        """Return the stream's storage settings: its own, and the node's for the rest."""
        try:
            return replace(node.of_new_stream, **self.own)
        except Misuse as error:
            raise Misuse(f"streams, stream {self.name!r}: {error}") from error


def _setting(stream: str, text: str) -> tuple[str, Any]:
    name, found, value = text.strip().partition("=")
    where = f"streams, stream {shown(stream)}"
    kind = _OWN.get(name)
    if not found or kind is None:
        raise Misuse(f"{where}: {shown(text)} is not SETTING=VALUE; use {', '.join(_OWN)}")
    try:
        return name, kind.convert_text(value)
    except ValueError as error:
        raise Misuse(f"{where}: {name} is {shown(value)}, not {kind.expected}: {error}") from error
