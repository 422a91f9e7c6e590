"""Options: what a user may ask of the `rt` source and sink, checked before anything is read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rt.config.kinds import parse_bytes, parse_seconds
from rt.errors import Misuse
from rt.limits import MIB
from rt.names import NameGlob, parse_glob, parse_peer
from rt.position import Position
from rt.spark.date_text import time_zone
from rt.text import parse_time

FAILFAST, PERMISSIVE, DROPMALFORMED = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"

PARTITION_BYTES: Final = 128 * MIB
_NAMES: Final = {
    name.lower(): name
    for name in (
        "path", "startingPosition", "endingPosition", "startingTimestamp", "endingTimestamp",
        "sessions", "keys", "minPartitions", "partitionBytes", "failOnDataLoss", "mode", "decode",
        "timeZone",
        "maxRecordsPerTrigger", "maxBytesPerTrigger", "pushFilters",
        "leaseNodes", "leaseCerts", "leaseIdentity", "leaseTime", "leaseBytes",
    )
}  # fmt: skip
_UNITS: Final = ("k", "m", "g", "t")
# Spark's own, which it hands to every source.
_SPARKS: Final = frozenset({"checkpointlocation"})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is to be read, and how.

    Attributes:
        path: of the log directory, or its URI.
        start: a position, `earliest` or `latest`.
        end: a position or `latest`; it is not read itself.
        start_ns: or the first message merged then or later (in a session: published).
        end_ns: or the first message that is not read any more.
        sessions: names or globs; None for all.
        keys: exact keys, and prefixes; None for all.
        min_partitions: a hint.
        partition_bytes: of the log, on disk, that a task reads.
        fail_on_data_loss: whether archived messages fail the query.
        mode: what a damaged frame does.
        decode: `json` or nothing.
        time_zone: of timestamps in JSON that name none.
        max_records: of a micro-batch.
        max_bytes: of a micro-batch, on disk.
        push_filters: whether filters of the query are used before anything is read.
        among: the only sessions that such filters leave; None for all.
        lease: who holds the files meanwhile; None if nobody does.
    """

    path: str
    start: Position | str = "earliest"
    end: Position | str = "latest"
    start_ns: int | None = None
    end_ns: int | None = None
    sessions: tuple[NameGlob, ...] | None = None
    keys: "Keys | None" = None
    min_partitions: int = 1
    partition_bytes: int = PARTITION_BYTES
    fail_on_data_loss: bool = True
    mode: str = FAILFAST
    decode: str = ""
    time_zone: str = "UTC"
    max_records: int | None = None
    max_bytes: int | None = None
    push_filters: bool = False
    among: frozenset[str] | None = None
    lease: "LeaseOptions | None" = None


@dataclass(frozen=True, slots=True)
class Keys:
    """The messages wanted: those whose key is one of `exact` or begins with one of `prefixes`."""

    exact: tuple[bytes, ...]
    prefixes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """A lease on the files of a load.

    Attributes:
        nodes: addresses of nodes of the stream.
        certs: directory of ca.pem, NAME.pem and NAME.key, on the driver.
        identity: NAME of the certificate to show.
        seconds: how long it holds, from the load and again from the first query.
        bytes_max: how much it holds, what is appended meanwhile too.
    """

    nodes: tuple[str, ...]
    certs: str
    identity: str
    seconds: float = 3600.0
    bytes_max: int = 100 << 30


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of a load; `Misuse` names the one that is unknown or contradicts another.

    Args:
        options: as Spark hands them over: their names in any case.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    for name in given:
        if name not in _NAMES and name not in _SPARKS:
            known = ", ".join(_NAMES.values())
            raise Misuse(f"the rt source has no option {name!r}; it has {known}")
    if not given.get("path"):
        raise Misuse('the rt source needs the directory of a log: .load("/data/flights/out")')
    for edge in ("starting", "ending"):
        if edge + "position" in given and edge + "timestamp" in given:
            raise Misuse(f"{edge}Position and {edge}Timestamp contradict each other; give one")
    return _checked(ReadOptions(path=given["path"], lease=_lease(given), **_values(given)))


def _checked(options: ReadOptions) -> ReadOptions:
    for first, last in ((options.start, options.end), (options.start_ns, options.end_ns)):
        if isinstance(first, int) and isinstance(last, int) and last < first:
            raise Misuse(f"the end, {last}, lies before the start, {first}")
    return options


def _values(given: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, tuple[str, Callable[[str], Any]]] = {
        "startingposition": ("start", lambda text: _position(text, ("earliest", "latest"))),
        "endingposition": ("end", lambda text: _position(text, ("latest",))),
        "startingtimestamp": ("start_ns", _time),
        "endingtimestamp": ("end_ns", _time),
        "sessions": ("sessions", _sessions),
        "keys": ("keys", _keys),
        "minpartitions": ("min_partitions", _count),
        "partitionbytes": ("partition_bytes", _size),
        "failondataloss": ("fail_on_data_loss", _truth),
        "mode": ("mode", lambda text: _choice(text, (FAILFAST, PERMISSIVE, DROPMALFORMED))),
        "decode": ("decode", lambda text: _choice(text, ("json",))),
        "timezone": ("time_zone", _zone),
        "maxrecordspertrigger": ("max_records", _count),
        "maxbytespertrigger": ("max_bytes", _size),
        "pushfilters": ("push_filters", _truth),
    }
    return _parsed(given, fields)


def _lease(given: Mapping[str, str]) -> LeaseOptions | None:
    fields: dict[str, tuple[str, Callable[[str], Any]]] = {
        "leasenodes": ("nodes", lambda text: tuple(_texts(text))),
        "leasecerts": ("certs", str),
        "leaseidentity": ("identity", parse_peer),
        "leasetime": ("seconds", parse_seconds),
        "leasebytes": ("bytes_max", _size),
    }
    values = _parsed(given, fields)
    missing = [_NAMES[name] for name in list(fields)[:3] if name not in given]
    if values and missing:
        raise Misuse(f"a lease needs leaseNodes, leaseCerts and leaseIdentity: no {missing[0]}")
    return LeaseOptions(**values) if values else None


def _parsed(
    given: Mapping[str, str], fields: Mapping[str, tuple[str, Callable[[str], Any]]]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, (field, parse) in fields.items():
        if name in given:
            try:
                values[field] = parse(given[name])
            except ValueError as error:
                raise Misuse(f"{_NAMES[name]} is {given[name][:60]!r}: {error}") from None
    return values


def _position(text: str, words: tuple[str, ...]) -> Position | str:
    return text.lower() if text.lower() in words else Position.parse(text)


def _time(text: str) -> int:
    return parse_time(int(text) if text.lstrip("-").isdecimal() else text)


def _zone(text: str) -> str:
    time_zone(text)
    return text


def _sessions(text: str) -> tuple[NameGlob, ...]:
    return tuple(parse_glob(name) for name in _texts(text))


def _keys(text: str) -> Keys:
    names = [name.encode() for name in _texts(text)]
    prefixes = tuple(name[:-1] for name in names if name.endswith(b"*"))
    return Keys(tuple(name for name in names if not name.endswith(b"*")), prefixes)


def _texts(text: str) -> list[str]:
    """Texts with commas between them, or a JSON array for texts that hold commas themselves."""
    try:
        is_array = text.startswith("[")
        names = json.loads(text) if is_array else [name.strip() for name in text.split(",")]
    except RecursionError:
        names = []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("give names with commas between them, or a JSON array of texts")
    return list(names)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ValueError("give a whole number from 1 on")
    return int(text)


def _size(text: str) -> int:
    text = text.strip()
    # Spark writes 128m for 128 MiB, rt 128Mi
    size = parse_bytes(text[:-1] + text[-1].upper() + "i" if text.endswith(_UNITS) else text)
    if not size:
        raise ValueError("give a size such as 128m")
    return size


def _truth(text: str) -> bool:
    return _choice(text, ("TRUE", "FALSE")) == "TRUE"


def _choice(text: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if text.lower() == choice.lower():
            return choice
    raise ValueError(f"give one of {', '.join(choices)}")
