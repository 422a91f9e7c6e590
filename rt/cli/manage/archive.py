"""`rt archive`: shows and changes how long a stream is kept."""

import click

from archiver.policy import parse_limit
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import show_outcome
from rt.cli.common.link import link_options
from rt.cli.common.options import Duration, flag, json_option
from rt.cli.manage.offload import offload
from rt.cli.manage.plan import plan
from rt.cli.manage.policy import policy
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.net.admin import reading_answers
from rt.text import time_text


@click.group(cls=CommandGroup)
def archive() -> None:
    """Show and change how long a stream is kept.

    \b
    rt archive policy show --nodes a:7420 --identity operator
    rt archive policy set '{"time": 10080, "limit": "90Gi", "disk": 90}' --identity operator
    rt archive plan --at 2030-01-01T00:00:00Z
    """  # noqa: D301 - click reads the backspace character


@archive.command()
@link_options("archive", json="the outcome")
def roll(settings: ConnectionSettings, *, as_json: bool) -> None:
    """End the active file of the merged log now, on every node.

    Only rolled files are archived, offloaded or aged. Needs an operator's or a node's certificate.

    \b
    rt archive roll --nodes a:7420 --identity operator
    """  # noqa: D301 - click reads the backspace character
    answer = settings.ask({"do": "roll"})
    with reading_answers():
        rolled = answer["rolled"]
    words = f"{rolled} is rolled" if rolled else "the active file is empty; nothing was rolled"
    show_outcome({"rolled": rolled}, words, as_json=as_json)


@archive.command()
@link_options("archive")
@click.option(
    "--from", "start", metavar="POSITION", default="0.0.0", show_default=True,
    help="First position to hold.",
)  # fmt: skip
@click.option(
    "--for", "held_s", type=Duration(), default="1h", show_default=True,
    help="How long to hold the files.",
)  # fmt: skip
@click.option("--seconds", type=Duration(), hidden=True, help="The earlier name of --for.")
@click.option(
    "--bytes", "size", metavar="SIZE", default="100Gi", show_default=True,
    help="Most bytes to hold.",
)  # fmt: skip
@flag("--release", help="Release the lease of this certificate's name.")
@json_option("the lease")
def lease(
    settings: ConnectionSettings, *, start: str, held_s: float, seconds: float | None, size: str,
    release: bool, as_json: bool,
) -> None:  # fmt: skip
    """Keep files for a reader, whatever the other rules say, unless the disk is full.

    \b
    rt archive lease --identity spark --from 0.3.0 --for 2h
    rt archive lease --identity spark --release

    The holder of the lease is the name in the certificate; a new lease replaces the holder's
    earlier one.
    """  # noqa: D301 - click reads the backspace character
    if release:
        answer = settings.ask({"do": "release"})
        with reading_answers():
            outcome = f"{answer['released']} no longer holds files"
    else:
        most = parse_limit(size, "bytes")
        if most is None:
            raise Misuse("bytes is 'none', but a lease has a bound; use a size such as 90Gi")
        lasts_s = held_s if seconds is None else seconds
        request = {"do": "lease", "start": start, "seconds": lasts_s, "bytes": most}
        answer = settings.ask(request)
        with reading_answers():
            until = time_text(answer["until_ns"])
            outcome = f"{answer['holder']} holds files from {answer['there_from']} until {until}"
    show_outcome(answer, outcome, as_json=as_json)


for command in (policy, plan, offload):
    archive.add_command(command)
