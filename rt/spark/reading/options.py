"""Options: the options of the `rt` source, checked before anything is read."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final

from rt.config.kinds import parse_bytes, parse_seconds
from rt.errors import Misuse
from rt.limits import MIB
from rt.names import parse_peer
from rt.position import Position
from rt.text import parse_time

FAILFAST, PERMISSIVE, DROPMALFORMED = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"
AUTO: Final = "auto"

PARTITION_BYTES: Final = 128 * MIB
# Names of Spark's Kafka source and sink for our options.
_ALIASES: Final = {
    "startingoffsets": "startingPosition",
    "endingoffsets": "endingPosition",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
    "subscribe": "streams",
    "topic": "stream",
}
# Options of earlier versions and of Spark's Kafka source, and what to write instead.
_INSTEAD: Final = {
    "subscribepattern": "give streams, with globs: streams=flights-*",
    "assign": "give streams and sessions",
    "kafka.bootstrap.servers": 'name the directory of the log: .load("/data/flights/out")',
    "startingoffsetsbytimestamp": "give startingTimestamp, in ISO 8601 or ns since the epoch",
    "endingoffsetsbytimestamp": "give endingTimestamp, in ISO 8601 or ns since the epoch",
    "decode": "call rt.spark.read(path).json(schema, mode=...), or from_json on the payload in SQL",
    "timezone": "from_json takes timeZone among its own options",
    "pushfilters": "select by startingTimestamp, endingTimestamp, positions, sessions and keys",
}
Table = Mapping[str, tuple[str, Callable[[str], Any]]]
_UNITS: Final = ("k", "m", "g", "t")
# Options that Spark sets itself, for streaming queries and for tables in its catalog.
_SPARKS: Final = frozenset((
    "checkpointlocation", "queryname", "owner", "location", "provider", "external", "comment",
    "is_managed_location", "serialization.format", "collation", "transient_lastddltime",
))  # fmt: skip
_GLOB: Final = re.compile(r"[a-z0-9*?\[\]!._-]+")


@dataclass(frozen=True, slots=True)
class Edges:
    """Where a load begins and ends.

    Attributes:
        start: a position, `earliest` or `latest`.
        end: a position or `latest`, exclusive.
        start_ns: a time instead of `start`: from the first message merged then or later (in a
            session: published).
        end_ns: a time instead of `end`: up to the first such message, exclusive.
    """

    start: Position | str = "earliest"
    end: Position | str = "latest"
    start_ns: int | None = None
    end_ns: int | None = None

    def __post_init__(self) -> None:
        for first, last in ((self.start, self.end), (self.start_ns, self.end_ns)):
            if isinstance(first, int) and isinstance(last, int) and last < first:
                raise Misuse(f"the end, {last}, is before the start, {first}")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages are read; None selects all.

    Attributes:
        streams: names or globs.
        sessions: names or globs.
        keys: exact keys and prefixes.
    """

    streams: tuple[str, ...] | None = None
    sessions: tuple[str, ...] | None = None
    keys: "Keys | None" = None

    def has_stream(self, name: str) -> bool:
        """Whether logs of this stream are read."""
        return self.streams is None or any(fnmatchcase(name, glob) for glob in self.streams)

    def has_session(self, name: str) -> bool:
        """Whether messages of this session are read."""
        return self.sessions is None or any(fnmatchcase(name, glob) for glob in self.sessions)


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much a micro-batch reads; None for no limit.

    Attributes:
        records: how many messages at most, of the selected sessions.
        bytes: how many bytes of the log on disk at most.
        records_min: a micro-batch waits for this many messages, of all sessions.
        delay_s: how long it waits for them at most.
    """

    records: int | None = None
    bytes: int | None = None
    records_min: int | None = None
    delay_s: float = 900.0

    def __post_init__(self) -> None:
        if self.records and self.records_min and self.records < self.records_min:
            raise Misuse("minRecordsPerTrigger is more than maxRecordsPerTrigger")


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a load is cut into tasks.

    Attributes:
        partitions: how many tasks at least; a hint.
        bytes: bytes of the log on disk for one task.
        records: how many selected messages a task has at most; None for no limit.
    """

    partitions: int = 1
    bytes: int = PARTITION_BYTES
    records: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a load reads, and how.

    Attributes:
        paths: log directories, globs or parents of log directories; or URIs of these.
        edges: where it begins and ends.
        selection: the wanted streams, sessions and keys.
        limits: how much a micro-batch may read.
        splitting: how it is cut into tasks.
        fail_on_data_loss: whether archived messages fail the query.
        mode: how to handle a damaged frame.
        check_bodies: `true`: read all bodies and check their CRCs. `false`: read only what the
            columns need. `auto`: `false` if headers suffice under FAILFAST, else `true`.
        columns: the columns of a load that names no schema, in order; () for the default columns.
        lease: keeps the archiver from the files; None for no lease.
    """

    paths: tuple[str, ...]
    edges: Edges = Edges()
    selection: Selection = Selection()
    limits: TriggerLimits = TriggerLimits()
    splitting: Splitting = Splitting()
    fail_on_data_loss: bool = True
    mode: str = FAILFAST
    check_bodies: str = AUTO
    columns: tuple[str, ...] = ()
    lease: "LeaseOptions | None" = None

    @property
    def path(self) -> str:
        """Return the first path, for messages."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Keys:
    """Selects messages whose key is one of `exact` or begins with one of `prefixes`."""

    exact: tuple[bytes, ...]
    prefixes: tuple[bytes, ...]

    @classmethod
    def parse(cls, names: Iterable[bytes]) -> "Keys":
        """Take names that end in `*` as prefixes."""
        names = list(names)
        prefixes = tuple(name[:-1] for name in names if name.endswith(b"*"))
        return cls(tuple(name for name in names if not name.endswith(b"*")), prefixes)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """A lease on the files of a load.

    Attributes:
        nodes: addresses of nodes of the stream.
        certs: directory of ca.pem, NAME.pem and NAME.key, on the driver.
        identity: NAME of the certificate to show.
        seconds: how long it lasts; it is taken at the load, and again at the first query.
        bytes_max: how much it may keep, including what is appended meanwhile.
    """

    nodes: tuple[str, ...]
    certs: str
    identity: str
    seconds: float = 3600.0
    bytes_max: int = 100 << 30


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a load.

    Args:
        options: as Spark passes them, with names in any case.

    Raises:
        Misuse: an option is unknown or wrong, or contradicts another.
    """
    found = parsed_options("source", options, _OPTIONS)
    given = {name for name, value in found.items() if value is not None}
    for edge in ("starting", "ending"):
        if {f"{edge}Position", f"{edge}Timestamp"} <= given:
            raise Misuse(f"{edge}Position and {edge}Timestamp contradict each other; give one")
    groups: dict[str, dict[str, Any]] = {kind: {} for kind in ("", *_GROUPS, "lease")}
    for name, (field, _) in _OPTIONS.items():
        if name in found:
            group, _, attribute = field.rpartition(".")
            groups[group][attribute] = found[name]
    others, lease = groups[""], groups["lease"]
    missing = [name for name in _LEASE_NEEDS if name not in found]
    if lease and missing:
        raise Misuse(f"a lease needs leaseNodes, leaseCerts and leaseIdentity; add {missing[0]}")
    return ReadOptions(
        paths=_paths(others.pop("paths", None), others.pop("path", ""), is_table=not options),
        lease=LeaseOptions(**lease) if lease else None,
        **{kind: make(**groups[kind]) for kind, make in _GROUPS.items()},
        **others,
    )


def parsed_options(what: str, options: Mapping[str, str], table: Table) -> dict[str, Any]:
    """Return the values of the options that were given, by their field names.

    Args:
        what: the source or the sink, for messages.
        options: the options as Spark passes them, with names in any case.
        table: the field and the parser of each option, by its name.

    Raises:
        Misuse: an option is unknown or wrong, or is given under two names.
    """
    names, found = {name.lower(): name for name in table}, {}
    for given, value in options.items():
        name = names.get(_ALIASES.get(given.lower(), given).lower())
        if name is None:
            if given.lower() in _INSTEAD:
                words = f"the rt {what} has no option {given}: {_INSTEAD[given.lower()]}"
                raise Misuse(f"{words} (docs/SPARK.md)")
            if not is_sparks_own(given.lower()):
                raise Misuse(unknown_option(what, given, table))
            continue
        if name in found:
            raise Misuse(f"{given} and {name} are one option; give one")
        try:
            found[name] = table[name][1](str(value))
        except ValueError as error:
            raise Misuse(f"{name}={str(value)[:60]!r}: {error}") from None
    return found


def is_sparks_own(name: str) -> bool:
    """Whether Spark sets this option itself, for a query or for a table in its catalog."""
    return name in _SPARKS or name.startswith("option.")


def unknown_option(what: str, name: str, known: Iterable[str]) -> str:
    """Return a message that there is no such option, suggesting the nearest."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, 1)
    if close:
        return f"the rt {what} has no option {name!r}; did you mean {by_lower[close[0]]}?"
    return f"the rt {what} has no option {name!r}; docs/SPARK.md lists its options"


def _paths(listed: list[str] | None, path: str, *, is_table: bool) -> tuple[str, ...]:
    if listed:
        return tuple(listed)
    if path:
        return (path,)
    raise Misuse(
        "the rt source needs the directory of a log. A table in Spark's catalog does not pass its "
        "path on to queries; use SELECT ... FROM table WITH (`path` = '...') or a temporary view"
        if is_table
        else 'the rt source needs the directory of a log: .load("/data/flights/out")'
    )


def _position(text: str, words: tuple[str, ...]) -> Position | str:
    return text.lower() if text.lower() in words else Position.parse(text)


def _time(text: str) -> int:
    return parse_time(int(text) if text.lstrip("-").isdecimal() else text)


def _globs(text: str) -> tuple[str, ...]:
    # a glob may begin with a character set
    is_array = text.startswith('["')
    globs = tuple(_texts(text) if is_array else (each.strip() for each in text.split(",")))
    for glob in globs:
        if not _GLOB.fullmatch(glob):
            raise ValueError(f"{glob[:60]!r} is not a name with *, ? or [...] in it")
    return globs


def _texts(text: str) -> list[str]:
    """Parse comma-separated texts, or a JSON array if a text contains a comma."""
    try:
        is_array = text.startswith("[")
        names = json.loads(text) if is_array else [name.strip() for name in text.split(",")]
    except RecursionError:
        names = []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("give comma-separated names or a JSON array of strings")
    return list(names)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ValueError("give a whole number of at least 1")
    return int(text)


def _size(text: str) -> int:
    text = text.strip()
    # Spark writes 128m for 128 MiB, rt 128Mi
    size = parse_bytes(text[:-1] + text[-1].upper() + "i" if text.endswith(_UNITS) else text)
    if not size:
        raise ValueError("give a size such as 128m")
    return size


def parse_duration(text: str) -> float:
    """Parse a duration into seconds; `m` is a minute, as Spark writes it."""
    return parse_seconds(f"{text}in" if text.endswith("m") else text)


def parse_truth(text: str) -> bool:
    """Parse `true` or `false`; `ValueError` if it is neither."""
    return _choice(text, ("TRUE", "FALSE")) == "TRUE"


def _choice(text: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if text.lower() == choice.lower():
            return choice
    raise ValueError(f"give one of {', '.join(choices)}")


_GROUPS: Final[Mapping[str, Any]] = {
    "edges": Edges, "selection": Selection, "limits": TriggerLimits, "splitting": Splitting,
}  # fmt: skip
_LEASE_NEEDS: Final = ("leaseNodes", "leaseCerts", "leaseIdentity")
_MODES: Final = (FAILFAST, PERMISSIVE, DROPMALFORMED)
# The field of `ReadOptions` that an option sets, and its parser.
_OPTIONS: Final[Table] = {
    "path": ("path", str),
    "paths": ("paths", _texts),
    "startingPosition": ("edges.start", lambda text: _position(text, ("earliest", "latest"))),
    "endingPosition": ("edges.end", lambda text: _position(text, ("latest",))),
    "startingTimestamp": ("edges.start_ns", _time),
    "endingTimestamp": ("edges.end_ns", _time),
    "streams": ("selection.streams", _globs),
    "sessions": ("selection.sessions", _globs),
    "keys": ("selection.keys", lambda text: Keys.parse(map(str.encode, _texts(text)))),
    "maxRecordsPerTrigger": ("limits.records", _count),
    "maxBytesPerTrigger": ("limits.bytes", _size),
    "minRecordsPerTrigger": ("limits.records_min", _count),
    "maxTriggerDelay": ("limits.delay_s", parse_duration),
    "minPartitions": ("splitting.partitions", _count),
    "partitionBytes": ("splitting.bytes", _size),
    "maxRecordsPerPartition": ("splitting.records", _count),
    "failOnDataLoss": ("fail_on_data_loss", parse_truth),
    "mode": ("mode", lambda text: _choice(text, _MODES)),
    "checkBodies": ("check_bodies", lambda text: _choice(text, (AUTO, "true", "false"))),
    "columns": ("columns", lambda text: tuple(each.strip() for each in text.split(","))),
    "leaseNodes": ("lease.nodes", lambda text: tuple(_texts(text))),
    "leaseCerts": ("lease.certs", str),
    "leaseIdentity": ("lease.identity", parse_peer),
    "leaseTime": ("lease.seconds", parse_duration),
    "leaseBytes": ("lease.bytes_max", _size),
}
