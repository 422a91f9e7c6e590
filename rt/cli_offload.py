"""`rt archive offload` and `rt restore`: copies of rolled files elsewhere, and back."""

import json
import os
import time

import click

from rt.admin import ask_any
from rt.cli_run import LinkSettings
from rt.console import Progress, counted
from rt.kinds import show_bytes
from rt.offload import offload as offload_files
from rt.offload import restore as restore_files
from rt.offloaded import Offloaded, write_offloaded
from rt.options import click_options
from rt.store import open_store


@click.command(name="offload")
@click_options(LinkSettings, "archive")
@click.argument("target", metavar="DIR|URL")
@click.option("--dir", "directory", metavar="DIR", required=True, help="Merged log to copy from.")
@click.option("--tell", is_flag=True, help="Tell the nodes: what is not copied waits from now on.")
@click.option("--stop", is_flag=True, help="Tell the nodes that nothing waits for copies any more.")
def offload(settings: LinkSettings, target: str, *, directory: str, tell: bool, stop: bool) -> None:
    """Copy rolled files elsewhere, as zstd, each read back and compared before it counts.

    \b
    rt archive offload /mnt/backup/flights --dir rt-node/flights/out --tell --identity n1
    rt archive offload s3://bucket/flights --dir copy/flights/out

    With --tell (which needs the certificate of a node) the rules time and limit leave alone what
    was not copied yet; a full disk does not wait. Run it again, as from cron, to copy what has
    been rolled since.
    """  # noqa: D301 - click reads the backspace character
    if stop:
        _tell(settings, None)
        click.echo("nothing waits for copies any more")
        return
    store, count, began = open_store(target), 0, time.monotonic()
    with Progress() as progress:

        def done(file: str, size: int) -> None:
            nonlocal count
            count += 1
            progress.show(f"{file}: {show_bytes(size)} bytes there", count)

        end = offload_files(directory, store, done)
    write_offloaded(directory, Offloaded(store.address, end))
    if tell:
        _tell(settings, {"url": store.address, "to": str(end)})
    seconds = time.monotonic() - began
    click.echo(
        f"{counted(count, 'file')} copied to {store.address} and read back in {seconds:.1f} s; "
        f"all before {end} is there"
    )


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
    directory = os.path.join(root, stream, "out")
    count = restore_files(open_store(source), directory)
    click.echo(f"{counted(count, 'file')} restored to {directory}")


def _tell(settings: LinkSettings, offloaded: dict[str, str] | None) -> None:
    request = {"do": "offloaded", "text": json.dumps(offloaded) if offloaded else ""}
    ask_any(settings.addresses(), settings.contexts(), request)
