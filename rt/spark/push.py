"""Push: what a query's filters leave of a load, found before any payload is read."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rt.errors import Misuse
from rt.position import Position
from rt.spark.options import FAILFAST, ReadOptions
from rt.spark.plan import LogSnapshot, LogView, edge

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class _Bounds(NamedTuple):
    """The whole numbers that filters leave: from `first` on, up to `stop`."""

    first: int | None
    stop: int | None


def narrowed(
    filters: Iterable[Filter], options: ReadOptions, snapshot: LogSnapshot
) -> tuple[ReadOptions, LogSnapshot]:
    """Return what still has to be read: filters on position, merge_time and session are used.

    Each narrows the read only by what is certain; Spark applies all of them to the rows again.
    """
    filters = list(filters)
    position = _bounds(filters, "position", _whole)
    micros = _bounds(filters, "merge_time", _microseconds)
    start, stop = position.first or 0, position.stop
    if snapshot.merged and micros != (None, None):
        first, last = _positions(options, snapshot, micros)
        start = max(start, first)
        stop = last if stop is None else min(stop, last)
    selection = replace(options.selection, among=_sessions(filters))
    return replace(options, selection=selection), _cut(snapshot, start, stop)


def _cut(snapshot: LogSnapshot, first: int, last: int | None) -> LogSnapshot:
    start = max(snapshot.start, first)
    stop = max(start, snapshot.stop if last is None else min(snapshot.stop, last))
    # of the files that the load found, so that one archived since is missed and not passed over
    files = tuple(
        (file, min(end, stop - file))
        for file, end in snapshot.files
        if file < stop and start < file + max(1, end)
    )
    return replace(snapshot, start=Position(start), stop=Position(stop), files=files)


def _positions(options: ReadOptions, snapshot: LogSnapshot, micros: _Bounds) -> tuple[int, int]:
    """Where the messages of these merge times begin and end: it never goes back in a log."""
    view = LogView(snapshot.path, strict=options.mode == FAILFAST)
    try:
        if not view.refresh():
            raise Misuse(f"{snapshot.path} no longer holds a log")
        first, stop = (None if each is None else 1000 * each for each in micros)
        start = snapshot.start if first is None else edge(view, "earliest", first)
        return start, snapshot.stop if stop is None else edge(view, "latest", stop, is_end=True)
    finally:
        view.close()


def _bounds(filters: list[Filter], column: str, whole: Callable[[Any], int | None]) -> _Bounds:
    firsts, stops = [], []
    for each in filters:
        value = whole(getattr(each, "value", None))
        if getattr(each, "attribute", None) != (column,) or value is None:
            continue
        if isinstance(each, GreaterThanOrEqual | EqualTo | EqualNullSafe):
            firsts.append(value)
        if isinstance(each, GreaterThan):
            firsts.append(value + 1)
        if isinstance(each, LessThan):
            stops.append(value)
        if isinstance(each, LessThanOrEqual | EqualTo | EqualNullSafe):
            stops.append(value + 1)
    return _Bounds(max(firsts, default=None), min(stops, default=None))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: Any) -> int | None:
    return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else None


def _sessions(filters: list[Filter]) -> frozenset[str] | None:
    among: frozenset[str] | None = None
    for each in filters:
        if getattr(each, "attribute", None) != ("session",):
            continue
        if isinstance(each, EqualTo | EqualNullSafe | In):
            values = each.value if isinstance(each, In) else [each.value]
            names = frozenset(name for name in values if isinstance(name, str))
            among = names if among is None else among & names
    return among
