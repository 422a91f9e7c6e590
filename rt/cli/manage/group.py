"""`rt group`: shows and moves the groups whose members divide a stream."""

from typing import Final

import click

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import table
from rt.cli.manage.reader_positions import Kind, Row, add_commands
from rt.net.admin import reading_answers
from rt.text import printable

_CLAIM_HEADINGS: Final = ("claim", "from", "to", "deliveries")
_CLAIM_FIELDS: Final = ("number", "first", "end", "deliveries")


@click.group(cls=CommandGroup)
def group() -> None:
    """Show and change groups: programs that divide the messages of a stream among themselves.

    A group hands each message to one of its members (rt.connect(...).subscriber(group="etl")).
    Only the leader knows the members; without a leader, none are listed.

    \b
    rt group list --stream flights --nodes n1:7420 --identity spark
    rt group show etl --config clients.toml
    """  # noqa: D301 - click reads the backspace character


def _show_members(row: Row) -> None:
    """Print a table of the ranges of the log that members of a group hold, and the members."""
    with reading_answers():
        claims = [
            [printable(str(each[field])) for field in _CLAIM_FIELDS] for each in row["claims"]
        ]
        members = [printable(str(each)) for each in row["members"]]
    if claims:
        click.echo("\n" + table(_CLAIM_HEADINGS, claims))
    if members:
        click.echo("\nmembers: " + ", ".join(members))


_KIND: Final = Kind(
    noun="group", path="rt group",
    reset="Move a group; the ranges that its members hold now are revoked.",
    forget="Remove a group; its members are refused from then on.",
    headings=("claims", "members"),
    cells=lambda row: (len(row["claims"]), len(row["members"])),
    details=_show_members,
)  # fmt: skip
add_commands(group, _KIND)
