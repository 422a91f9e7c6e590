"""`rt standby`: shows how far behind a standby is, and makes a cluster that continues its log."""

import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, Final

import click

from replicator.pull.promoted import demand_current, promoted_to
from rt.amounts import duration_text, size_text
from rt.cli.cluster.cluster import (
    ClusterOptions,
    cluster_options,
    show_cluster,
    write_cluster,
)
from rt.cli.cluster.succession import fence, rejoin_command
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import note, print_json, say, teller
from rt.cli.common.link import LINK_LISTED, LongWait, link_options
from rt.cli.common.options import Duration, flag, json_option
from rt.client.promotion import complete_succession, draft_path, succession, succession_path
from rt.client.readers.settings import ConnectionSettings
from rt.client.standby import STATE_NAME, StandbyRecord, carried_here, read_record
from rt.errors import Misuse, RtError, spoken
from rt.inspect.divergence import divergence
from rt.log.files.absent import no_log
from rt.log.files.archived import place_after
from rt.log.files.directory import LogDirectory
from rt.log.files.disk import make_private_directory
from rt.log.read.proof import Proof, proof_at
from rt.log.read.start import end_of
from rt.names import merged_directory
from rt.net.admin import reading_answers
from rt.net.authority.files import write_file
from rt.net.authority.grants import GRANTS_NAME
from rt.node.founding.cluster_files import CLIENTS_NAME, Place, free_addresses
from rt.node.founding.from_copy import parse_groups
from rt.position import Position
from rt.text import counted, printable, time_text
from sequencer.ledger.seal import MOVED_TO_MAX

_POLL_S: Final = 0.2


@click.group(cls=CommandGroup)
def standby() -> None:
    """Show how far behind a standby is, promote it to a cluster, and deal with the old cluster.

    A standby is a copy of a cluster's log, which rt pull --standby keeps together with the
    cluster's state: policy, leases, cursors, groups and owners of sessions.

    \b
    rt standby status --root copy --stream flights --max 30
    rt standby promote new --root copy --stream flights --now --dry-run
    rt standby promote new --root copy --stream flights --drained --config old/clients.toml
    rt standby fence --root copy --stream flights --config old/clients.toml
    rt standby rejoin --root n1 --stream flights --succession copy/flights/standby.succession
    rt standby compare n1/flights/out copy/flights/out
    """  # noqa: D301 - click reads the backspace character


standby.add_command(fence)
standby.add_command(rejoin_command)


@standby.command()
@link_options("archive", listed=("root", "stream"))
@click.option(
    "--max", "max_s", type=Duration(), default="1min", show_default=True,
    help="Exit with 1 if the standby may lack more than this much time.",
)  # fmt: skip
@json_option("how far the standby is")
def status(settings: ConnectionSettings, *, max_s: float, as_json: bool) -> None:
    """Show how far behind a standby is, how far its digest matches, and how old its state is.

    The exit code is 0 if the standby was promoted, or if its log lacks nothing that was merged more
    than --max ago and its state is no older than --max. Otherwise it is 1, also if nothing
    is known because rt pull --standby does not run or reaches no node.

    \b
    rt standby status --root copy --stream flights --max 30
    """  # noqa: D301 - click reads the backspace character
    record, now_ns = read_record(settings.root, settings.stream), time.time_ns()
    moved_to = promoted_to(merged_directory(settings.root, settings.stream))
    wrong = "" if moved_to else _wrong(record, max_s, now_ns)
    if as_json:
        print_json({**_facts(record, now_ns), "promoted_to": moved_to or None, "ok": not wrong})
    else:
        say(*_lines(record, now_ns))
        if moved_to:
            say(f"  it was promoted, and takes nothing more: its log continues at {moved_to}")
    if wrong:
        raise click.ClickException(wrong)


def _facts(record: StandbyRecord, now_ns: int) -> dict[str, Any]:
    """Return a standby's progress, as recorded in `record`, as JSON fields for a script."""
    return {
        "end": record.end, "cluster_end": record.cluster_end, "messages_behind": record.behind,
        "bytes_behind": record.behind_bytes if record.behind_bytes >= 0 else None,
        "seconds_behind": _rounded(record.behind_s(now_ns)),
        "proven_to": record.proven_to, "digest": record.proven_digest,
        "state_age_s": _rounded(record.state_age_s(now_ns)), "error": record.error,
        "source": record.source or None, "crosses": record.crosses,
    }  # fmt: skip


def _rounded(seconds: float) -> float | None:
    return None if math.isinf(seconds) else round(seconds, 3)


def _wrong(record: StandbyRecord, max_s: float, now_ns: int) -> str:
    """Return why a standby may be over `max_s` behind in messages or state; "" if it is not."""
    because = f" ({printable(record.error)})" if record.error else ""
    if now_ns - record.at_ns > max(max_s, 30.0) * 1e9:
        return f"rt pull --standby has not reported since {time_text(record.at_ns)}"
    if not record.state_index:
        return f"no state is carried yet{because}"
    behind_s = record.behind_s(now_ns)
    if behind_s > max_s:
        if math.isinf(behind_s):
            return f"how far the copy is behind is not known{because}"
        return f"the copy may lack what was merged in the last {duration_text(behind_s)}{because}"
    if record.state_age_s(now_ns) > max_s:
        return f"the state was carried at {time_text(record.state_at_ns)}, and not since{because}"
    return ""


def _lines(record: StandbyRecord, now_ns: int) -> list[str]:
    """Return a standby's progress, as recorded in `record`, as lines for a person."""
    behind_s = record.behind_s(now_ns)
    unknown = math.isinf(behind_s)
    as_of = (
        "an unknown part of it" if unknown else f"everything merged {duration_text(behind_s)} ago"
    )
    size = f" ({size_text(record.behind_bytes)})" if record.behind_bytes > 0 else ""
    lines = [
        f"the copy ends at {record.end}, the cluster's log at {record.cluster_end}",
        f"  it has {as_of}; {record.behind:,} messages{size} behind when last asked",
        f"  equal to the cluster's by digest up to {record.proven_to}",
    ]
    if record.source:
        what = "a node of the cluster" if record.crosses else "a mirror of this site"
        lines.append(f"  it comes from {record.source}, {what}")
    if record.state_at_ns:
        age_s = record.state_age_s(now_ns)
        lines.append(
            f"  the state is {duration_text(age_s)} old, of instruction {record.state_index}"
        )
    return lines


@standby.command()
@cluster_options("--count", with_layout=False)
@link_options("archive", listed=("root", *LINK_LISTED))
@flag("--drained", help="Seal the cluster first, and wait until the standby has all of its log.")
@flag("--now", "is_now", help="Continue with what the standby has, as the cluster is lost.")
@flag("--dry-run", "is_dry", help="Only say what would be missing.")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="5min", show_default=True,
    help="With --drained: give up after this long; the cluster stays sealed.",
)  # fmt: skip
def promote(
    directory: str, settings: ConnectionSettings, *, drained: bool, is_now: bool, is_dry: bool,
    timeout_s: float, **given: Any,
) -> None:  # fmt: skip
    """Write the files of a cluster that continues a standby's log and state.

    With --drained, the cluster that --config or --nodes names is sealed, the standby copies the
    rest of its log, and the digests of log and copy are compared: nothing is lost, and positions,
    sequence numbers, copies, cursors and groups stay valid. If the command fails, rt cluster unseal
    reopens the old cluster's log.

    With --now, the new log begins where the standby's copy ends. Messages that the old cluster
    merged after the copy's end are missing, unless publishers still have them. The log gets a new
    id, so that copies of the old log, which may hold more, are refused. With --authority, rt
    standby fence can seal the old cluster when it comes back, and rt standby rejoin can turn its
    copies into copies of the new log; without --authority, the old cluster must not run again.

    Then found and start the new nodes with the commands that are printed. The options are those of
    rt cluster init. To keep the old cluster's certificates and grants, give its directory of
    certificates as --authority.

    \b
    rt standby promote new --root copy --stream flights --drained --config old/clients.toml \\
      --authority old/certs --address b1:7420 --address b2:7420 --address b3:7420
    rt standby promote new --root copy --stream flights --now --dry-run
    """  # noqa: D301 - click reads the backspace character
    if drained == is_now:
        raise click.UsageError("give --drained if the cluster runs, or --now if it is lost")
    if is_dry:
        _say_missing(settings, drained=drained, as_json=given["as_json"])
        return
    tell = teller(as_json=given["as_json"])
    if os.path.exists(os.path.join(directory, CLIENTS_NAME)):
        if is_now and complete_succession(settings, directory):
            tell(f"the promotion that was interrupted is complete; its files are in {directory}")
            _tell_fence(settings, tell)
            return
        words = f"{directory} holds the files of a cluster; name another directory"
        raise Misuse(f"{words}, or go on with rt cluster seal --moved-to, and start those nodes")
    source = merged_directory(settings.root, settings.stream)
    if drained:
        demand_current(source)
        _drain(settings, timeout_s, tell)
    else:
        tell(_missing(read_record(settings.root, settings.stream)))
    carried = carried_here(settings.root, settings.stream)
    path = os.path.join(directory, STATE_NAME)
    grants = os.path.join(given["authority"], GRANTS_NAME) if given["authority"] else ""
    given["addresses"] = given["addresses"] or free_addresses(given["count"])
    given["names"] = given["names"] or carried.fresh_names(len(given["addresses"]))
    with _continued(settings, carried.log, given, drained=drained) as log_id:
        make_private_directory(directory)
        # a copy of the state, since rt pull --standby goes on to replace its own
        write_file(path, carried.encode(), force=True)
        options = ClusterOptions(
            directory, settings.stream, source, path, log_id=log_id,
            grants=grants if os.path.exists(grants) else "",
            succession=draft_path(settings) if is_now and given["authority"] else "", **given,
        )  # fmt: skip
        places = write_cluster(options)
    if drained:
        _move(settings, places, tell)
    elif given["authority"]:
        _tell_fence(settings, tell)
    show_cluster(options, places)


def _tell_fence(settings: ConnectionSettings, tell: Callable[..., None]) -> None:
    tell(f"{succession_path(settings)} says where the log continues; tell the old cluster:")
    tell(f"  rt standby fence --root {shlex.quote(settings.root)} --stream {settings.stream}")


def _continued(
    settings: ConnectionSettings, log: str, given: dict[str, Any], *, drained: bool
) -> AbstractContextManager[str]:
    """Return a context that yields the id of the new cluster's log; "" lets the cluster choose one.

    With `drained`, the new cluster keeps the id `log`. Otherwise, if an authority was given, it
    signs a statement within the context that the new log continues `log`.
    """
    if drained:
        return nullcontext(log)
    if given["authority"]:
        return succession(settings, log, given["addresses"], given["authority"])
    note(
        "without --authority nothing can tell the old cluster, if it comes back, that its log "
        "continues elsewhere: keep it from starting"
    )
    return nullcontext("")


def _move(settings: ConnectionSettings, places: Sequence[Place], tell: Callable[..., None]) -> None:
    """Have the old cluster turn away all clients, and tell them the addresses of the new nodes.

    This must be done before the new nodes run: from then on the log grows without the old cluster.
    """
    moved_to = ",".join(each.address for each in places)[:MOVED_TO_MAX]
    try:
        settings.ask({"do": "seal", "moved_to": moved_to})
    except (RtError, OSError) as error:
        raise click.ClickException(
            f"the files are written, and the old cluster could not be told ({spoken(error)}); do "
            f"not start the new nodes before this is done: rt cluster seal --moved-to {moved_to}"
        ) from None
    tell(f"the old cluster tells everyone that the log continues at {moved_to}")


def _say_missing(settings: ConnectionSettings, *, drained: bool, as_json: bool) -> None:
    """Print where the log of a promoted standby would begin, and what may be missing."""
    record, now_ns = read_record(settings.root, settings.stream), time.time_ns()
    carried_here(settings.root, settings.stream)
    if as_json:
        print_json(_facts(record, now_ns))
        return
    say(*_lines(record, now_ns))
    if drained:
        say("with --drained, nothing is missing: the cluster is sealed, and the copy completed")
    else:
        say(_missing(record))


def _missing(record: StandbyRecord) -> str:
    """Return a sentence about what may be missing if a standby is promoted with --now."""
    since = time_text(record.complete_as_of_ns) if record.complete_as_of_ns else "an unknown time"
    return f"what was merged after {since} may be missing, unless its publishers still have it"


def _drain(settings: ConnectionSettings, timeout_s: float, tell: Callable[..., None]) -> None:
    """Seal the old cluster, and wait until the standby has all of the log and the latest state.

    Raises:
        ClickException: the standby took longer than `timeout_s`, or its copy differs from the log.
    """
    with reading_answers():
        answer = settings.ask({"do": "seal"})
        end, index = Position.parse(str(answer["end"])), int(answer["index"])
        proof = Proof(int(answer["number"]), bytes.fromhex(str(answer["digest"])))
    tell(f"the cluster is sealed at {end}, number {proof.number:,}")
    deadline_s, root, stream = time.monotonic() + timeout_s, settings.root, settings.stream

    def has_come() -> bool:
        return _is_complete(root, stream, end, index)

    wait = LongWait(has_come, lambda: f"the standby is at {read_record(root, stream).end}")
    while not wait.is_over():
        if time.monotonic() > deadline_s:
            late = f"the standby has not come to {end} in {duration_text(timeout_s)}"
            raise click.ClickException(
                f"{late}; does rt pull --standby run? "
                "The cluster is still sealed: rt cluster unseal"
            )
        time.sleep(_POLL_S)
    with closing(LogDirectory(merged_directory(root, stream))) as log:
        log.refresh()
        found = proof_at(log, end)
        known = log.manifest
        ends_there = place_after(known, end_of(log)) == place_after(known, end)
    is_whole = found == proof and ends_there
    if not is_whole:
        raise click.ClickException(
            f"the copy differs from the cluster's log at {end}; rt verify it. The cluster is still "
            "sealed: rt cluster unseal lets it go on"
        )
    tell(f"copy and cluster are equal: number {proof.number:,}, digest {proof.digest.hex()}")


def _is_complete(root: str, stream: str, end: Position, index: int) -> bool:
    """Return whether a standby has the log up to `end`, and the state as of instruction `index`."""
    try:
        carried, record = carried_here(root, stream), read_record(root, stream)
    except Misuse:
        return False
    return carried.state().index >= index and Position.parse(record.end) >= end


@standby.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option(
    "--group", "groups", metavar="GROUP=SESSION,SESSION", multiple=True,
    help="Sessions that are redundant publishers of one group; repeat for more.",
)  # fmt: skip
@json_option("where the logs part, and what is missing")
@click.pass_context
def compare(
    context: click.Context, *, old: str, new: str, groups: tuple[str, ...], as_json: bool
) -> None:
    """Show what a lost cluster had merged that its successor lacks.

    OLD is the merged log of a stopped node of the cluster that was given up by promote --now. NEW
    is a complete copy of the log that continues OLD (rt pull --once). Both are equal, by digest, up
    to the position where the new cluster began. Messages after that position in OLD may be in NEW
    too, if publishers have sent them again; the missing ones are listed by session and sequence
    number. Nothing is changed.

    The exit code is 1 if messages are missing.

    \b
    rt standby compare n1/flights/out copy/flights/out
    rt standby compare n1/flights/out copy/flights/out --group feed=a,b --json
    """  # noqa: D301 - click reads the backspace character
    named = {each: group for group, every in parse_groups(groups).items() for each in every}
    with closing(_merged_log(old)) as first, closing(_merged_log(new)) as second:
        found = divergence(first, second, named)
    if as_json:
        print_json({
            "cut": str(found.cut), "number": found.proof.number, "digest": found.proof.digest.hex(),
            "beyond": found.beyond, "lost": found.lost, "missing": found.missing,
        })  # fmt: skip
    else:
        say(
            f"equal up to {found.cut}, number {found.proof.number:,}",
            f"  digest {found.proof.digest.hex()}",
            f"{old} has {counted(found.beyond, 'message')} after it; {new} lacks {found.lost:,}",
        )
        for name, spans in found.missing.items():
            texts = [f"{first:,} to {end - 1:,}" for first, end in spans]
            say(f"missing   {name}: sequence numbers {', '.join(texts)}")
    if found.lost:
        context.exit(1)


def _merged_log(path: str) -> LogDirectory:
    """Open the merged log in `path`; `Misuse` if `path` has no log, or a session's log."""
    log = LogDirectory(path)
    log.refresh()
    if log.manifest.identity is None:
        raise no_log(path)
    if not log.merged:
        raise Misuse(f"{path}: a session's log; name a merged one, such as n1/flights/out")
    return log
