"""`rt cluster seal` and `unseal`: end a cluster's log, so that another cluster may continue it."""

from typing import Any

import click

from rt.cli.common.console import print_json, say
from rt.cli.common.link import link_options
from rt.cli.common.options import json_option
from rt.client.readers.settings import ConnectionSettings
from rt.net.admin import reading_answers


@click.command()
@link_options("archive", follows=False)
@click.option(
    "--moved-to", metavar="TEXT", default="",
    help="Where the log continues, such as the new nodes' addresses; readers are told this, and "
    "turned away too.",
)  # fmt: skip
@json_option("where the log ends")
def seal(settings: ConnectionSettings, *, moved_to: str, as_json: bool) -> None:
    """End the log of a cluster: the cluster merges nothing more, and keeps its state unchanged.

    Publishers keep what they publish and are told why it is not merged. Readers are still served,
    unless --moved-to is given. rt cluster unseal reopens the log. Needs an operator's certificate.

    \b
    rt cluster seal --config old/clients.toml
    rt cluster seal --config old/clients.toml --moved-to b1:7420,b2:7420,b3:7420
    """  # noqa: D301 - click reads the backspace character
    _show(settings.ask({"do": "seal", "moved_to": moved_to}), as_json=as_json)


@click.command()
@link_options("archive", follows=False)
@json_option("where the log ends")
def unseal(settings: ConnectionSettings, *, as_json: bool) -> None:
    """Reopen the log of a sealed cluster, unless another cluster continues it.

    Refused once the sealed cluster has the authority's signed statement that another cluster
    continues its log (rt standby promote --now --authority).

    \b
    rt cluster unseal --config old/clients.toml
    """  # noqa: D301 - click reads the backspace character
    _show(settings.ask({"do": "unseal"}), as_json=as_json)


def _show(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    with reading_answers():
        seal, end = answer["sealed"], f"{answer['end']}, number {int(answer['number']):,}"
        digest = str(answer["digest"])
    if seal is None:
        say("the log goes on", f"  it ends at {end} now")
        return
    say(f"the log is sealed: it ends at {end}", f"  digest {digest}")
    if moved_to := str(seal["moved_to"]):
        say(f"  readers are told that it continues at {moved_to}")
