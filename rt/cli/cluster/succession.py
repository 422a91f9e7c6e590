"""`rt standby fence` and `rejoin`: seal a cluster that was given up, and reuse its copies."""

import time

import click

from rt.cli.common import link
from rt.cli.common.console import print_json, say
from rt.cli.common.link import LINK_LISTED, link_options
from rt.cli.common.options import Duration, flag, json_option
from rt.cli.process.stop_signals import StopSignals
from rt.client.promotion import read_succession, succession_path
from rt.client.readers.rejoin import LISTING_NAME, Rejoined, rejoin
from rt.client.readers.settings import ConnectionSettings
from rt.errors import Misuse
from rt.net.admin import reading_answers
from rt.net.authority.succession import Succession
from rt.net.fencing import EVERY_S, Fencing
from rt.net.known_nodes import addresses_in
from rt.text import counted, printable


@click.command()
@link_options("archive", listed=("root", *LINK_LISTED), follows=False)
@click.option(
    "--succession", "path", metavar="FILE", default="",
    help="The file that rt standby promote wrote.  [default: standby.succession beside the copy]",
)  # fmt: skip
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    help="Give up after this long, with exit code 1.",
)
@json_option("where the old log ends")
def fence(
    settings: ConnectionSettings, *, path: str, timeout_s: float | None, as_json: bool
) -> None:
    """Seal the lost cluster as soon as it comes back.

    Asks the old cluster's nodes every second, until a majority of them runs and has agreed that the
    log continues elsewhere. From then on the old cluster merges nothing, and tells its clients
    where to go. Run the command as a service on a machine that can reach the old nodes. Any
    certificate will do, since the message for the nodes is signed by the authority. Messages
    that the old cluster merges before it is sealed are not in the new log; rt standby rejoin keeps
    and lists them.

    \b
    rt standby fence --root copy --stream flights --config old/clients.toml
    """  # noqa: D301 - click reads the backspace character
    known, text = read_succession(path or succession_path(settings), settings.certs)
    every, moved = settings.addresses(), set(addresses_in(known.moved_to))
    old = [each for each in every if each not in moved] or every  # they may name both sites
    fencing, next_s = Fencing(lambda: old, settings.contexts(), text), 0.0

    def is_told() -> bool:
        nonlocal next_s
        if time.monotonic() < next_s:
            return False
        try:
            is_over = fencing.attempt()
        except Misuse as error:  # of an earlier version
            by_hand = f"rt cluster seal --moved-to {known.moved_to}"
            raise Misuse(f"{error}; seal it by hand: {by_hand}") from None
        next_s = time.monotonic() + EVERY_S
        return is_over

    with StopSignals() as signals, link.interrupting(signals):
        words = "the old cluster is not sealed yet"
        wait = link.LongWait(is_told, lambda: f"{words}: {printable(fencing.failure)}")
        if not link.wait_until(signals, wait.is_over, timeout_s, ends=True):
            raise click.ClickException(f"{words}: {printable(fencing.failure)}")
    answer = fencing.answer
    if as_json:
        print_json(answer or {"sealed": fencing.failure})
        return
    if fencing.is_sealed:
        say(f"the old cluster was sealed before: {printable(fencing.failure)}")
        return
    with reading_answers():
        end = f"{answer['end']}, number {int(str(answer['number'])):,}"
    say(f"the old cluster is sealed: its log ends at {end}")


@click.command("rejoin")
@link_options("pull", listed=("root", "stream", "certs"))
@click.option(
    "--succession", "path", metavar="FILE", default="",
    help="The file that rt standby promote wrote.  [default: standby.succession beside the copy]",
)  # fmt: skip
@flag("--dry-run", "is_dry", help="Only say what would happen.")
@json_option("what happened")
def rejoin_command(settings: ConnectionSettings, *, path: str, is_dry: bool, as_json: bool) -> None:
    """Turn a copy of the old cluster's log into a copy of the log that continues it.

    ROOT is the directory of a stopped node of the old cluster, of a stopped puller, or of the
    standby. The new log continues the old one from a position, the cut. Up to the cut, the copy
    must equal the old log, by digest. If the copy has messages after the cut, they do not belong to
    the new log: the whole old copy is kept in a directory beside the new one, with a list of the
    sessions and sequence numbers of those messages. Readers' cursors stay valid; cursors after the
    cut are moved back to it.

    After that, rt pull continues the copy from the new cluster; rt node refuses to start on it. To
    move the cluster back to the old site, make the copy a standby with rt pull --standby, and then
    use rt standby promote --drained.

    \b
    rt standby rejoin --root n1 --stream flights --succession standby.succession --dry-run
    rt standby rejoin --root n1 --stream flights --succession standby.succession
    rt pull --root n1 --stream flights --config new/clients.toml --identity edge --standby
    """  # noqa: D301 - click reads the backspace character
    known, _ = read_succession(path or succession_path(settings), settings.certs)
    found = rejoin(settings.root, settings.stream, known, is_dry=is_dry)
    if as_json:
        print_json({
            "end": str(found.end), "cut": known.cut, "messages_beyond": found.messages,
            "beyond": found.beyond, "aside": found.aside or None,
            "cursors": {name: str(at) for name, at in found.cursors.items()},
        })  # fmt: skip
    else:
        say(*_lines(found, known, is_dry=is_dry))


def _lines(found: Rejoined, known: Succession, *, is_dry: bool) -> list[str]:
    """Return lines for a person: what was done to a copy, or with `is_dry`, what would be done."""
    will = "would be" if is_dry else "is"
    lines = [f"the copy {will} one of the log {known.new}, and ends at {found.end}"]
    if found.aside:
        lines += [
            f"  it had {counted(found.messages, 'message')} after {known.cut}, where the logs part",
            f"  {found.aside} {'would have' if is_dry else 'has'} them, and {LISTING_NAME} in it",
        ]
    for name, at in found.cursors.items():
        lines.append(f"cursor {name} was at {at}; it {will} moved back to {known.cut}")
    return lines
