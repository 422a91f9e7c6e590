"""`rt archive offload` and `rt restore`: copies of rolled files elsewhere, and back."""

import json
import os
import time
from typing import Any

import click

from rt.cli.console import ProgressBar, counted
from rt.cli.options import click_options
from rt.cli.run import LinkSettings
from rt.config.kinds import show_bytes
from rt.errors import Misuse
from rt.names import stream_directory
from rt.net.admin import ask_any
from rt.offload.offload import Outcome
from rt.offload.offload import offload as offload_files
from rt.offload.offload import restore as restore_files
from rt.offload.offloaded import write_offloaded
from rt.offload.store import open_store
from rt.subscriber import MERGED_NAME


@click.command(name="offload")
@click_options(LinkSettings, "archive")
@click.argument("target", metavar="DIR|URL", required=False)
@click.option("--dir", "directory", metavar="DIR", help="Merged log to copy from; required.")
@click.option("--tell", is_flag=True, help="Tell the nodes: what is not copied waits from now on.")
@click.option("--stop", is_flag=True, help="Tell the nodes that nothing waits for copies any more.")
def offload(
    settings: LinkSettings,
    target: str | None,
    *,
    directory: str | None,
    tell: bool,
    stop: bool,
) -> None:
    """Copy rolled files elsewhere, as zstd, each read back and compared before it counts.

    \b
    rt archive offload /mnt/backup/flights --dir rt-node/flights/out --tell --identity n1
    rt archive offload s3://bucket/flights --dir copy/flights/out
    rt archive offload --stop --identity n1

    With --tell (which needs the certificate of a node) the rules time and limit leave alone what
    was not copied yet; a full disk does not wait. Run it again, as from cron, to copy what has
    been rolled since.
    """  # noqa: D301 - click reads the backspace character
    if stop:
        if target is not None or directory is not None or tell:
            raise click.UsageError("--stop copies nothing; give it alone")
        _tell(settings, None)
        click.echo("nothing waits for copies any more")
        return
    if target is None or directory is None:
        raise click.UsageError("name where the copies go, and with --dir the merged log")
    store, count, began = open_store(target), 0, time.monotonic()
    with ProgressBar() as progress:

        def done(file: str, size: int) -> None:
            nonlocal count
            count += 1
            progress.show(f"{file}: {show_bytes(size)} bytes there", count)

        outcome = offload_files(directory, store, done)
    offloaded, seconds = outcome.offloaded, time.monotonic() - began
    write_offloaded(directory, offloaded)
    but = ""
    if outcome.missing:
        but = f", but not what was archived before it was copied: {_named(outcome.missing)}"
    click.echo(
        f"{counted(count, 'file')} copied to {store.address} and read back in {seconds:.1f} s; "
        f"all before {offloaded.to} is there{but}"
    )
    if tell:
        _demand_all(outcome, directory)
        _tell(settings, offloaded.fields())


@click.command(name="restore")
@click.argument("source", metavar="DIR|URL")
@click.option("--root", default="rt-restored", show_default=True, help="Directory for streams.")
@click.option("--stream", default="stream", show_default=True, help="Name of the stream.")
def restore(source: str, root: str, stream: str) -> None:
    """Make a merged log of the copies that `rt archive offload` made, for any subscriber to read.

    \b
    rt restore /mnt/backup/flights --root old --stream flights
    rt subscribe --root old --stream flights --no-follow
    """  # noqa: D301 - click reads the backspace character
    directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
    count = restore_files(open_store(source), directory)
    click.echo(f"{counted(count, 'file')} restored to {directory}")


def _demand_all(outcome: Outcome, directory: str) -> None:
    """See that no node would let go of a file by what it is told, and nobody has it then."""
    if outcome.given_up:
        raise Misuse(
            f"the nodes are not told: {directory} archived files by a rule of its own before they "
            f"were copied ({_named(outcome.given_up)}); offload them to {outcome.offloaded.url} "
            "from a node's own log, with --tell"
        )


def _named(files: tuple[str, ...]) -> str:
    return files[0] + (f" and {len(files) - 1:,} more" if len(files) > 1 else "")


def _tell(settings: LinkSettings, offloaded: dict[str, Any] | None) -> None:
    request = {"do": "offloaded", "text": json.dumps(offloaded) if offloaded else ""}
    ask_any(settings.addresses(), settings.contexts(), request)
