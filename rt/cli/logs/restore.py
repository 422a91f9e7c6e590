"""`rt restore`: rebuilds a merged log from offloaded copies."""

import os

import click

from rt.cli.common.console import ProgressBar, print_json, say
from rt.cli.common.options import json_option
from rt.names import MERGED_NAME, stream_directory
from rt.offload.offload import restore as restore_files
from rt.offload.store import open_store
from rt.text import counted, size_text


@click.command(name="restore")
@click.argument("source", metavar="DIR|URL")
@click.option("--root", default="rt-restored", show_default=True, help="Directory for streams.")
@click.option("--stream", default="stream", show_default=True, help="Name of the stream.")
@json_option("the outcome")
def restore(source: str, root: str, stream: str, *, as_json: bool) -> None:
    """Rebuild a merged log from the copies of `rt archive offload`, for any subscriber to read.

    \b
    rt restore /mnt/backup/flights --root old --stream flights
    rt subscribe --root old --stream flights --no-follow
    """  # noqa: D301 - click reads the backspace character
    directory = os.path.join(stream_directory(root, stream), MERGED_NAME)
    count = 0
    with ProgressBar() as progress:

        def done(file: str, size: int) -> None:
            nonlocal count
            count += 1
            progress.show(f"{file}: {size_text(size)}", count)

        restored = restore_files(open_store(source), directory, done)
    if as_json:
        print_json({"directory": directory, "files": restored})
    else:
        say(f"{counted(restored, 'file')} restored to {directory}")
