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
    """Where a load begins and ends."""

    start: Position | str = "earliest"  # a position, `earliest` or `latest`
    end: Position | str = "latest"  # a position or `latest`, exclusive
    # a time instead of `start`: from the first message merged then or later (in a session:
    # published)
    start_ns: int | None = None
    end_ns: int | None = None  # a time instead of `end`: up to the first such message, exclusive

    def __post_init__(self) -> None:
        for first, last in ((self.start, self.end), (self.start_ns, self.end_ns)):
            if isinstance(first, int) and isinstance(last, int) and last < first:
                raise Misuse(f"the end, {last}, is before the start, {first}")

    @property
    def are_from_earliest(self) -> bool:
        """Whether the load begins at the oldest message that is left."""
        return self.start == "earliest" and self.start_ns is None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages a load reads; a field that is None selects all."""

    streams: tuple[str, ...] | None = None  # names or globs
    sessions: tuple[str, ...] | None = None  # names or globs
    keys: "Keys | None" = None  # exact keys and prefixes

    def has_stream(self, name: str) -> bool:
        """Whether logs of this stream are read."""
        return _matches(name, self.streams)

    def has_session(self, name: str) -> bool:
        """Whether messages of this session are read."""
        return _matches(name, self.sessions)


def _matches(name: str, globs: tuple[str, ...] | None) -> bool:
    return globs is None or any(fnmatchcase(name, glob) for glob in globs)


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much a micro-batch reads at most, and how much it waits for; None for no limit."""

    records: int | None = None  # how many messages at most, of the selected sessions
    bytes: int | None = None  # how many bytes of the log on disk at most
    records_min: int | None = None  # a micro-batch waits for this many messages, of all sessions
    delay_s: float = 900.0  # how long it waits for them at most

    def __post_init__(self) -> None:
        if self.records and self.records_min and self.records < self.records_min:
            raise Misuse("minRecordsPerTrigger is more than maxRecordsPerTrigger")


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a load is cut into tasks."""

    partitions: int = 1  # how many tasks at least; a hint
    bytes: int = PARTITION_BYTES  # bytes of the log on disk for one task
    records: int | None = None  # how many selected messages a task has at most; None for no limit


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a load reads, and how."""

    paths: tuple[str, ...]  # log directories, globs or parents of log directories; or URIs of these
    edges: Edges = Edges()  # where it begins and ends
    selection: Selection = Selection()  # the wanted streams, sessions and keys
    limits: TriggerLimits = TriggerLimits()  # how much a micro-batch may read
    splitting: Splitting = Splitting()  # how it is cut into tasks
    fail_on_data_loss: bool = True  # whether archived messages fail the query
    mode: str = FAILFAST  # how to handle a damaged frame
    # `true`: read all bodies and check their CRCs. `false`: read only what the columns need.
    # `auto`: `false` if headers suffice under FAILFAST, else `true`.
    check_bodies: str = AUTO
    # the columns of a load that names no schema, in order; () for the default columns
    columns: tuple[str, ...] = ()
    lease: "LeaseOptions | None" = None  # keeps the archiver from the files; None for no lease
    copies: str = ""  # the store in which archived files are read; "" for none


@dataclass(frozen=True, slots=True)
class Keys:
    """Selects messages whose key is one of `exact` or begins with one of `prefixes`."""

    exact: tuple[bytes, ...]
    prefixes: tuple[bytes, ...]

    @classmethod
    def parse(cls, names: Iterable[bytes]) -> "Keys":
        """Return a selection of these keys, where a name that ends in `*` is a prefix."""
        names = list(names)
        prefixes = tuple(name[:-1] for name in names if name.endswith(b"*"))
        return cls(tuple(name for name in names if not name.endswith(b"*")), prefixes)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """A lease that a load takes, so that the nodes keep the files that it reads."""

    nodes: tuple[str, ...]  # addresses of nodes of the stream
    certs: str  # directory of ca.pem, NAME.pem and NAME.key, on the driver
    identity: str  # NAME of the certificate to show
    # how long it lasts; it is taken at the load, and again at the first query
    seconds: float = 3600.0
    bytes_max: int = 100 << 30  # how much it may keep, including what is appended meanwhile


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check and parse the options of a load, as Spark passes them.

    Raises:
        Misuse: an option is unknown or wrong, or contradicts another.
    """
    found = parsed_options("source", options, _OPTIONS)
    for edge in ("starting", "ending"):
        if {f"{edge}Position", f"{edge}Timestamp"} <= found.keys():
            raise Misuse(f"{edge}Position and {edge}Timestamp contradict each other; give one")
    groups: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        group, _, attribute = _OPTIONS[name][0].rpartition(".")
        groups.setdefault(group, {})[attribute] = value
    missing = [name for name in _LEASE_NEEDS if name not in found]
    if "lease" in groups and missing:
        raise Misuse(f"a lease needs leaseNodes, leaseCerts and leaseIdentity; add {missing[0]}")
    others = groups.pop("", {})
    return ReadOptions(
        paths=_paths(others.pop("paths", None), others.pop("path", ""), is_table=not options),
        **{kind: _GROUPS[kind](**fields) for kind, fields in groups.items()},
        **others,
    )


def parsed_options(what: str, options: Mapping[str, str], table: Table) -> dict[str, Any]:
    """Return the parsed values of options, by their names in `table`; names may be in any case.

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
            if given.lower() not in _SPARKS and not given.lower().startswith("option."):
                close = get_close_matches(given.lower(), names, 1)
                raise Misuse(
                    f"the rt {what} has no option {given!r}; "
                    + (f"did you mean {names[close[0]]}?" if close else "see docs/SPARK.md")
                )
            continue
        if name in found:
            raise Misuse(f"{given} and {name} are one option; give one")
        try:
            found[name] = table[name][1](str(value))
        except ValueError as error:
            as_typed = name if given.lower() == name.lower() else given
            raise Misuse(f"{as_typed}={str(value)[:60]!r}: {error}") from None
    return found


def split_columns(text: str) -> tuple[str, ...]:
    """Split a text such as `session, headers map<string, binary>` at the commas between columns."""
    return tuple(each.strip() for each in re.split(r",(?![^<>]*>)", text))


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
    """Parse comma-separated texts, or a JSON array of texts, which may contain commas."""
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


def _store(text: str) -> str:
    if not text:
        raise ValueError("name the directory or URL of rt archive offload")
    return text


def _size(text: str) -> int:
    text = text.strip()
    # Spark writes 128m for 128 MiB, rt 128Mi
    size = parse_bytes(text[:-1] + text[-1].upper() + "i" if text.endswith(_UNITS) else text)
    if not size:
        raise ValueError("give a size such as 128m")
    return size


def parse_duration(text: str) -> float:
    """Parse a duration such as `10m` or `2h` into seconds; `m` is a minute, as in Spark."""
    return parse_seconds(f"{text}in" if text.endswith("m") else text)


def parse_truth(text: str) -> bool:
    """Parse `true` or `false`; `ValueError` if `text` is anything else."""
    return _choice(text, ("TRUE", "FALSE")) == "TRUE"


def _choice(text: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if text.lower() == choice.lower():
            return choice
    raise ValueError(f"give one of {', '.join(choices)}")


_GROUPS: Final[Mapping[str, Any]] = {
    "edges": Edges, "selection": Selection, "limits": TriggerLimits, "splitting": Splitting,
    "lease": LeaseOptions,
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
    "columns": ("columns", split_columns),
    "copies": ("copies", _store),
    "leaseNodes": ("lease.nodes", lambda text: tuple(_texts(text))),
    "leaseCerts": ("lease.certs", str),
    "leaseIdentity": ("lease.identity", parse_peer),
    "leaseTime": ("lease.seconds", parse_duration),
    "leaseBytes": ("lease.bytes_max", _size),
}
