"""SessionPolicy: how long a session's publisher may be silent, as operators set it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from rt.amounts import duration_text
from rt.config.kinds import parse_seconds
from rt.errors import Misuse
from rt.names import shown

SESSIONS_NOTE: Final = "sessions"
_SECONDS_MAX: Final = 100 * 366 * 86_400.0
_CLOSE_MIN_S: Final = 0.1  # time for two or three reports to reach the leader


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """SessionPolicy: what happens when nothing pushes a session, and after how long.

    Attributes:
        close_s: seconds until the session is closed. If its publisher returns earlier, nothing is
            recorded.
        take_s: seconds from closing until another publisher may take over its name.
        expire_s: seconds from closing until it expires and the nodes forget it; 0 for never.
    """

    close_s: float = 10.0
    take_s: float = 3_600.0
    expire_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value <= _SECONDS_MAX:
                raise Misuse(f"{name} is {value:g}; use 0 seconds to 100 years")
        if self.close_s < _CLOSE_MIN_S:
            least = duration_text(_CLOSE_MIN_S)
            raise Misuse(f"close_s is {self.close_s:g}; use at least {least}")

    def text(self) -> str:
        """Return the policy as JSON; equal policies give equal texts.

        >>> SessionPolicy(expire_s=86400).text()
        '{"close_s":10.0,"take_s":3600.0,"expire_s":86400}'
        """
        return json.dumps(asdict(self), separators=(",", ":"))


def session_policy_of(given: Any, known: SessionPolicy = SessionPolicy()) -> SessionPolicy:
    """Return the policy `known`, changed by the fields of a JSON object.

    Raises:
        Misuse: the object is malformed.

    >>> session_policy_of({"expire_s": "7d"}).expire_s
    604800.0
    """
    names = [each.name for each in fields(SessionPolicy)]
    if not isinstance(given, dict):
        raise Misuse("a policy of sessions is an object, such as " + SessionPolicy().text())
    if strange := sorted(given.keys() - set(names)):
        raise Misuse(f"a policy of sessions has no {shown(strange[0])}; it has {', '.join(names)}")
    return SessionPolicy(**{**asdict(known), **{key: _seconds(key, given[key]) for key in given}})


def _seconds(name: str, value: object) -> float:
    if isinstance(value, str):
        try:
            return 0.0 if value == "never" and name == "expire_s" else parse_seconds(value)
        except ValueError:
            pass
    if type(value) in (int, float):
        return float(str(value))
    given = shown(value if isinstance(value, str) else repr(value))
    raise Misuse(f"{name} is {given}; use seconds, or a time such as 30min")


def session_policy_of_notes(notes: Mapping[str, str]) -> SessionPolicy:
    """Return the agreed policy, or the default if there is none.

    If this version cannot read it, return the default, with which no session expires.
    """
    text = notes.get(SESSIONS_NOTE)
    try:
        return parse_session_policy(text) if text else SessionPolicy()
    except Misuse:
        return SessionPolicy()


def parse_session_policy(text: str) -> SessionPolicy:
    """Parse the output of `SessionPolicy.text`; `Misuse` if `text` is anything else."""
    try:
        return session_policy_of(json.loads(text))
    except (ValueError, RecursionError, OverflowError) as error:
        raise Misuse(f"not a policy of sessions: {error}") from None
