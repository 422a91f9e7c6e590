"""Arrow: a log as a stream of Arrow record batches, for pandas, Polars, DuckDB and others."""

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from rt.errors import Misuse
from rt.log.read.start import Start
from rt.names import parse_glob
from rt.offload.store import open_store
from rt.position import START
from rt.spark.reading.log_paths import log_paths
from rt.spark.reading.options import Edges, Keys, ReadOptions, Selection
from rt.spark.reading.plan import parsed_edge, take_snapshots


def read_arrow(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    start: Start | str = "earliest",
    end: Start | str = "latest",
    sessions: Collection[str] | None = None,
    keys: Collection[bytes | str] | bytes | str | None = None,
    on_gap: Literal["raise", "skip"] = "raise",
    copies: str | os.PathLike[str] | None = None,
) -> Any:
    """Read a log as Arrow record batches of about 2 MiB, in order.

    This call fixes what is read; messages appended later are left out. Messages are never turned
    into Python objects. Each batch owns its memory, and only a few batches are held at a time.

    Args:
        path: directory of a log (`root/<stream>/out`, or a session), a directory above several, a
            glob, or a URI that fsspec knows.
        columns: any of position, time, time_ns, merge_time, session, seq, number, key, payload,
            payload_size, stream and file; all but the last two by default. Payloads that are not
            requested are not decoded.
        start: where to begin, as for `rt.Subscriber`.
        end: where to stop, in the same forms, exclusive.
        sessions: names or globs of the sessions wanted.
        keys: exact keys, or prefixes followed by `*`.
        on_gap: `raise` a `GapError` if messages in the range were archived, or `skip` them.
            `earliest` is the oldest message still there.
        copies: directory or URL that the log was offloaded to. Archived files are read back from
            there, each verified before any of its messages is returned.

    Returns:
        A `pyarrow.RecordBatchReader`, which can be read once. Reading it raises `CorruptLog` where
        the log is damaged, `PoisonError` where a frame is whole but its messages cannot be decoded,
        and `GapError` where a file was archived meanwhile.

    Raises:
        Misuse: an argument is wrong, or there is no log at `path`.
        GapError: messages in the range were archived.
        ImportError: pyarrow or NumPy is missing.

    Examples:
        >>> import tempfile
        >>> from rt import Publisher, read_arrow
        >>> root = tempfile.mkdtemp()
        >>> with Publisher(root, stream="flights", session="jfk") as publisher:
        ...     _ = publisher.publish_many([b"AA1", b"B6 2"])
        >>> read_arrow(f"{root}/flights/jfk", columns=["seq", "payload"]).read_all().to_pylist()
        [{'seq': 0, 'payload': b'AA1'}, {'seq': 1, 'payload': b'B6 2'}]
    """
    table = LogTable(
        path, columns=columns, start=start, end=end, sessions=sessions, keys=keys, on_gap=on_gap,
        copies=copies,
    )  # fmt: skip
    return table.reader()


class LogTable:
    """A log as Arrow data that can be read repeatedly; creating it fixes what it contains.

    Any library that reads the Arrow stream of an object, such as DuckDB, accepts it as a table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        start: Start | str = "earliest",
        end: Start | str = "latest",
        sessions: Collection[str] | None = None,
        keys: Collection[bytes | str] | bytes | str | None = None,
        on_gap: Literal["raise", "skip"] = "raise",
        copies: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take a snapshot of the log; arguments and errors as for `read_arrow`."""
        if on_gap not in ("raise", "skip"):
            raise Misuse(f"on_gap is {on_gap!r}; use raise or skip")
        try:
            import pyarrow as pa  # noqa: F401, PLC0415 - optional, and heavy

            from rt.spark.reading.schema import arrow_schema  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                f"read_arrow needs {error.name}; install rt-transport with the extra 'arrow'"
            ) from None
        paths = log_paths((os.fspath(path),))
        store = "" if copies is None else os.fspath(copies) or open_store("").address
        first, first_ns = parsed_edge(paths, start, store, sessions)
        last, last_ns = parsed_edge(paths, end, store, sessions)
        self._options = ReadOptions(
            paths, Edges(first, START if last == "earliest" else last, first_ns, last_ns),
            Selection(sessions=_parsed_sessions(sessions), keys=_parsed_keys(keys)),
            fail_on_data_loss=on_gap == "raise", copies=store,
        )  # fmt: skip
        self.schema = arrow_schema([columns] if isinstance(columns, str) else columns or ())
        self.decoded: Collection[str] = self.schema.names
        self.error: Exception | None = None  # why reading ended early
        self._snapshots = take_snapshots(self._options)

    def reader(self) -> Any:
        """Return a `pyarrow.RecordBatchReader`; columns that are not in `decoded` are all null."""
        import pyarrow as pa  # noqa: PLC0415 - as above

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - as above

        from rt.spark.reading.task import read_here  # noqa: PLC0415

        wanted = pa.schema([each for each in self.schema if each.name in self.decoded])
        try:
            for batch in read_here(self._snapshots, self._options, wanted):
                if wanted.names == self.schema.names:
                    yield batch
                    continue
                read = dict(zip(wanted.names, batch.columns, strict=True))
                yield pa.RecordBatch.from_arrays(
                    [
                        read[each.name] if each.name in read
                        else pa.nulls(batch.num_rows, each.type)
                        for each in self.schema
                    ],
                    schema=self.schema,
                )  # fmt: skip
        except Exception as error:
            self.error = error  # readers of the stream pass on its message only
            raise


def _parsed_sessions(sessions: Collection[str] | None) -> tuple[str, ...] | None:
    names = [sessions] if isinstance(sessions, str) else sessions
    return None if names is None else tuple(parse_glob(each) for each in names)


def _parsed_keys(keys: Collection[bytes | str] | bytes | str | None) -> Keys | None:
    if keys is None:
        return None
    given = [keys] if isinstance(keys, bytes | str) else keys
    return Keys.parse([each.encode() if isinstance(each, str) else bytes(each) for each in given])
