"""Summary: how many messages a load has and where it begins and ends, from headers alone."""

from dataclasses import dataclass

from rt.errors import Misuse
from rt.position import Position
from rt.spark.reading.options import ReadOptions
from rt.spark.reading.plan import open_log, take_snapshots
from rt.spark.reading.steps import last_run, runs


@dataclass(frozen=True, slots=True)
class Summary:
    """Count and bounds of the messages of a load; without messages, the bounds are None.

    Attributes:
        messages: how many messages there are; in a merged log, each is counted once.
        position_min: position of the first message.
        position_max: position of the last message.
        number_min: number of the first message in the merged stream; in a session, its sequence
            number.
        number_max: number of the last message; in a session, its sequence number.
        merge_time_ns_min: when the first message was merged, ns since the epoch; None in a session.
        merge_time_ns_max: when the last message was merged.
    """

    messages: int = 0
    position_min: Position | None = None
    position_max: Position | None = None
    number_min: int | None = None
    number_max: int | None = None
    merge_time_ns_min: int | None = None
    merge_time_ns_max: int | None = None


def summarize(options: ReadOptions) -> Summary:
    """Count the messages of a load, and find the first and the last.

    Merged messages are numbered without gaps, so if a load of a merged log selects all sessions,
    only the first and the last header are read. For selected sessions, and for a session's own log,
    the headers of all their frames are read. Bodies are not read, and not checked.

    Raises:
        Misuse: the load has several logs, or selects keys.
        GapError: part of the load was archived.
        CorruptLog: a header is damaged.
    """
    selection = options.selection
    if selection.keys is not None:
        raise Misuse("a summary is made from headers, and keys are not in them")
    snapshots = take_snapshots(options)
    if len(snapshots) > 1:
        raise Misuse(f"a summary needs one log, and the load names {len(snapshots)}")
    if not snapshots:
        return Summary()
    snapshot = snapshots[0]
    with open_log(snapshot.place.path, copies=snapshot.place.copies) as view:
        found = runs(view, snapshot.start, snapshot.stop, selection)
        first = next(found, None)
        if first is None:
            return Summary()
        last = first
        if selection.sessions is None and view.log.merged and not snapshot.gaps:
            last = last_run(view, first.start, snapshot.stop) or first
            messages = last.next_number - first.number
        else:
            messages = len(first)
            for last in found:
                messages += len(last)
        return Summary(
            messages, first.start, Position(last.end - 1), first.number, last.next_number - 1,
            first.merge_time_ns, last.merge_time_ns,
        )  # fmt: skip
