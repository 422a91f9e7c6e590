"""`rt restore`: rebuilds a merged log from offloaded copies."""

import click

from rt.cli.common.console import ProgressBar, show_outcome
from rt.cli.common.options import json_option
from rt.names import merged_directory
from rt.offload.offload import restore as restore_files
from rt.offload.store import open_store
from rt.text import counted


@click.command(name="restore")
@click.argument("source", metavar="DIR|URL")
@click.option(
    "--root", default="rt-restored", show_default=True,
    help="Directory that holds the restored stream.",
)  # fmt: skip
@click.option("--stream", default="stream", show_default=True, help="Name of the stream.")
@json_option("the outcome")
def restore(source: str, root: str, stream: str, *, as_json: bool) -> None:
    """Rebuild a merged log from the copies of `rt archive offload`, for any subscriber to read.

    \b
    rt restore /mnt/backup/flights --root old --stream flights
    rt subscribe --root old --stream flights --no-follow
    """  # noqa: D301 - click reads the backspace character
    directory = merged_directory(root, stream)
    with ProgressBar() as progress:
        restored = restore_files(open_store(source), directory, progress.count)
    words = f"{counted(restored, 'file')} restored to {directory}"
    show_outcome({"directory": directory, "files": restored}, words, as_json=as_json)
