"""`rt archive offload`: copies rolled files to another store."""

import json
import time
from typing import Any

import click

from rt.amounts import duration_text
from rt.cli.common.console import ProgressBar, print_json, say, show_outcome
from rt.cli.common.link import link_options
from rt.cli.common.options import flag, json_option
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.masking import demand_no_secret
from rt.offload.offload import Outcome
from rt.offload.offload import offload as offload_files
from rt.offload.offloaded import write_offloaded
from rt.offload.store import Store, open_store
from rt.text import counted, first_few


@click.command(name="offload")
@link_options("archive")
@click.argument("target", metavar="DIR|URL", required=False)
@click.option(
    "--dir", "directory", metavar="DIR",
    help="Merged log to copy from; required unless --stop is given.",
)  # fmt: skip
@flag("--tell", help="Tell the nodes to archive only files that have been copied.")
@flag("--stop", help="Tell the nodes to archive files without waiting for copies.")
@json_option("the outcome")
def offload(
    settings: ConnectionSettings, target: str | None, *, directory: str | None, tell: bool,
    stop: bool, as_json: bool,
) -> None:  # fmt: skip
    """Copy rolled files to another store, zstd-compressed; each copy is read back and verified.

    \b
    rt archive offload /mnt/backup/flights --dir rt-node/flights/out --tell --identity operator
    rt archive offload s3://bucket/flights --dir copy/flights/out
    rt archive offload --stop --identity operator

    After --tell, which needs an operator's certificate, the nodes archive a file by the rules time,
    limit and messages only once it is copied; the rule disk does not wait for that. Run the command
    again, for example from cron, to copy files that have been rolled since.
    """  # noqa: D301 - click reads the backspace character
    if stop:
        if target is not None or directory is not None or tell:
            raise click.UsageError("--stop copies nothing; give it alone")
        _tell(settings, None)
        show_outcome(
            {"offloaded": None},
            "the nodes archive files without waiting for copies",
            as_json=as_json,
        )
        return
    if target is None or directory is None:
        raise click.UsageError("name the target of the copies, and the merged log with --dir")
    demand_no_secret(target)
    store, began = open_store(target), time.monotonic()
    with ProgressBar() as progress:
        outcome = offload_files(directory, store, progress.count)
    write_offloaded(directory, outcome.offloaded)
    _report(outcome, progress.files, store, time.monotonic() - began, as_json=as_json)
    if tell:
        _demand_all(outcome, directory)
        _tell(settings, outcome.offloaded.fields())


def _report(outcome: Outcome, count: int, store: Store, took_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json({
            "address": store.address, "copied": count, "seconds": round(took_s, 3),
            "offloaded": outcome.offloaded.fields(), "missing": outcome.missing,
        })  # fmt: skip
        return
    but = ""
    if outcome.missing:
        but = f", except what was archived before it was copied: {first_few(outcome.missing, 1)}"
    say(
        f"{counted(count, 'file')} copied to {store.address} and read back in "
        f"{duration_text(took_s)}; everything before {outcome.offloaded.to} is there{but}"
    )


def _demand_all(outcome: Outcome, directory: str) -> None:
    """Raise `Misuse` if `directory` archived a file before it was copied.

    The nodes must then not be told that all files are copied: they may hold the last ones.
    """
    if outcome.given_up:
        lost = first_few(outcome.given_up, 1)
        raise Misuse(
            f"the nodes were not told: {directory} archived files by its own rules before they "
            f"were copied ({lost}); offload them to {outcome.offloaded.url} "
            "from a node's own log, with --tell"
        )


def _tell(settings: ConnectionSettings, offloaded: dict[str, Any] | None) -> None:
    settings.ask({"do": "offloaded", "text": json.dumps(offloaded) if offloaded else ""})
