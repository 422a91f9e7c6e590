"""SessionQuotas: how much of a stream each publisher may use, as operators set it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from archiver.policy import parse_limit
from replicator.limits.quotas import NO_QUOTA, Quota
from rt.errors import Misuse
from rt.names import PeerName, parse_peer, shown
from rt.node.notes.readable_notes import readable
from sequencer.ledger.instruction import NOTE_BYTES_MAX

QUOTAS_NOTE: Final = "quotas"
_NONE: Final = "none"
_DEFAULT: Final = "default"
_KEYS: Final = tuple(each.name for each in fields(Quota))
_NUMBER: Final = re.compile("[0-9]{1,9}")

Limits = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class SessionQuotas:
    """SessionQuotas: the default quota of publishers, and exceptions for some of them.

    Attributes:
        default: the quota of a publisher without limits of its own.
        publishers: for some publishers, limits that override the default; None means no limit.
    """

    default: Quota = NO_QUOTA
    publishers: Mapping[PeerName, Limits] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, publisher: PeerName) -> Quota:
        """Return the quota of one publisher.

        >>> SessionQuotas(Quota(sessions=5), {"jfk": {"sessions": None}}).of("jfk").sessions
        """
        own = self.publishers.get(publisher)
        return self.default if own is None else Quota(**{**_limits(self.default), **own})

    def changed(self, given: Any, publisher: str = "") -> "SessionQuotas":
        """Return the quotas with limits changed, for all publishers or for one.

        Args:
            given: a JSON object with a size or a number for each changed limit, or `none` for no
                limit. For one publisher, `default` restores the default limit.
            publisher: the publisher's name; "" for all.

        Raises:
            Misuse: `given` is malformed.
        """
        _demand_limits(given)
        if not publisher:
            limits = {key: _limit(key, given[key]) for key in given}
            return SessionQuotas(Quota(**{**_limits(self.default), **limits}), self.publishers)
        name = parse_peer(publisher)
        asked = {**self.publishers.get(name, {}), **given}
        own = {key: _limit(key, asked[key]) for key in asked if asked[key] != _DEFAULT}
        Quota(**own)
        others = {each: kept for each, kept in self.publishers.items() if each != name}
        return SessionQuotas(self.default, {**others, name: own} if own else others)

    def text(self) -> str:
        """Return the quotas as JSON, "" if nothing is limited; equal quotas give equal texts.

        Raises:
            Misuse: the text is too long for a note.

        >>> SessionQuotas(Quota(sessions=5), {"jfk": {"sessions": None}}).text()
        '{"bytes_s":null,"sessions":5,"publishers":{"jfk":{"sessions":null}}}'
        """
        if self == SessionQuotas():
            return ""
        text = json.dumps(self.fields(), separators=(",", ":"))
        if len(text) > NOTE_BYTES_MAX:
            words = f"{len(self.publishers)} publishers have quotas of their own; that is too many"
            raise Misuse(f"{words}: give most of them the default (rt session quota NAME --help)")
        return text

    def fields(self) -> dict[str, Any]:
        """Return the quotas as a JSON object."""
        own = {name: dict(self.publishers[name]) for name in sorted(self.publishers)}
        return {**_limits(self.default), "publishers": own}


def quotas_of_notes(notes: Mapping[str, str]) -> SessionQuotas:
    """Return the agreed quotas; no limits if there are none, or this version cannot read them."""
    text = notes.get(QUOTAS_NOTE)
    return _of_text(text) if text else SessionQuotas()


@lru_cache(256)  # each turn of a publisher's connection reads its stream's quotas
def _of_text(text: str) -> SessionQuotas:
    found, _ = readable({QUOTAS_NOTE: text}, QUOTAS_NOTE, parse_quotas)
    return found[0] if found else SessionQuotas()


def parse_quotas(text: str) -> SessionQuotas:
    """Return the quotas in the text of a note; `Misuse` if `text` is malformed."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    own = found.pop("publishers", {}) if isinstance(found, dict) else None
    if not isinstance(own, dict):
        raise Misuse(f"not quotas: {shown(text)}")
    quotas = SessionQuotas().changed(found)
    for name, limits in own.items():
        quotas = quotas.changed(limits, name)
    return quotas


def _limits(quota: Quota) -> dict[str, int | None]:
    return {key: getattr(quota, key) for key in _KEYS}


def _demand_limits(given: Any) -> None:
    if not isinstance(given, dict):
        raise Misuse('a quota is an object, such as {"bytes_s": "10Mi", "sessions": 5}')
    if strange := sorted(given.keys() - set(_KEYS)):
        raise Misuse(f"a quota has no {shown(strange[0])}; it has {' and '.join(_KEYS)}")


def _limit(key: str, value: object) -> int | None:
    if value == _DEFAULT:
        raise Misuse(f"{key} is default; name the publisher that is to have the default")
    if key == "bytes_s":
        return parse_limit(value, key)
    if value is None or value == _NONE:
        return None
    if not _NUMBER.fullmatch(str(value)):
        raise Misuse(f"{key} is {shown(repr(value))}; use a number, such as 5, or {_NONE}")
    return int(str(value))
