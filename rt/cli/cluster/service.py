"""`rt service`: installs a node, a pusher or a puller as a service of systemd."""

import os
import pwd
import re
import shutil
import sys
from typing import Final

import click

from rt.cli.cluster.units import Unit
from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import note, say
from rt.cli.common.link import ServiceSettings
from rt.cli.common.options import flag
from rt.cli.data.pull import PullSettings
from rt.config.settings import load
from rt.errors import Misuse, spoken
from rt.node.settings.node import NodeSettings

_USER: Final = re.compile("[a-z_][a-z0-9_-]{0,31}")
_UNITS: Final = "/etc/systemd/system"


@click.group(cls=CommandGroup)
def service() -> None:
    """Install a node, a pusher or a puller as a service of systemd.

    \b
    rt service install node --config /etc/rt/n1.toml --dry-run
    rt service install push --config /etc/rt/clients.toml
    """  # noqa: D301 - click reads the backspace character


@service.command()
@click.argument("kind", type=click.Choice(["node", "push", "pull"]))
@click.option("--config", metavar="FILE", required=True, envvar="RT_CONFIG",
              help="Settings file of the program.  [RT_CONFIG]")  # fmt: skip
@click.option("--user", default="rt", show_default=True, help="User that the service runs as.")
@click.option(
    "--program", metavar="FILE", help="Path of the program rt.  [default: the running one]"
)
@click.option(
    "--unit-dir", metavar="DIR", default=_UNITS, show_default=True,
    help="Directory to write the unit to.",
)  # fmt: skip
@flag("--force", help="Overwrite an existing unit that differs.")
@flag("--dry-run", help="Print the unit, and write nothing.")
def install(
    kind: str, *, config: str, user: str, program: str | None, unit_dir: str, force: bool,
    dry_run: bool,
) -> None:  # fmt: skip
    """Write a unit for KIND: node, push or pull.

    The service may write only to the root that the settings name. It reloads on SIGHUP, and tells
    systemd when it is ready and that it is alive; systemd restarts it after a failure that a
    restart can cure. The command starts nothing and creates no user.

    \b
    rt service install node --config /etc/rt/n1.toml --dry-run > rt-node-n1.service
    rt service install pull --config /etc/rt/clients.toml --user spark
    """  # noqa: D301 - click reads the backspace character
    unit = _unit(kind, config, user, program)
    if dry_run:
        click.echo(unit.text(), nl=False)
        note(f"nothing was written; without --dry-run this would be {unit_dir}/{unit.file_name}")
        return
    path = os.path.join(unit_dir, unit.file_name)
    _write(path, unit.text(), force=force)
    say(f"{path} is written. Next:", "")
    for line in _next_steps(unit):
        say(f"  {line}")


def _unit(kind: str, config: str, user: str, program: str | None) -> Unit:
    """Return the unit for the file `config`; `UsageError` if a setting or an argument is wrong."""
    if not _USER.fullmatch(user):
        raise click.UsageError(f"--user {user!r} is not a user's name")
    command = program or _own_program()
    if not os.path.isabs(command):
        raise click.UsageError(f"--program {command!r} is not an absolute path")
    try:
        settings = _settings(kind, config)
    except (Misuse, FileNotFoundError) as error:
        raise click.UsageError(spoken(error)) from error
    if not os.path.isabs(settings.root) or not os.path.isabs(settings.certs):
        raise click.UsageError(
            f"{config}: a service has no directory of its own; write root and certs in [{kind}] as "
            "absolute paths"
        )
    name = settings.name if isinstance(settings, NodeSettings) else ""
    paths = (command, os.path.abspath(config), settings.root)
    for path in paths:
        if not path.isprintable():
            raise click.UsageError(f"{path!r} has characters that a unit cannot hold")
    return Unit(kind, settings.stream, name, *paths, user)


def _settings(kind: str, config: str) -> NodeSettings | ServiceSettings:
    """Load the settings from the file alone: a service does not get this shell's environment."""
    if kind == "node":
        return load(NodeSettings, config, kind, {})
    return load(PullSettings if kind == "pull" else ServiceSettings, config, kind, {})


def _own_program() -> str:
    """Return the path of the command `rt`: next to the running Python, or else from PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "rt")
    return beside if os.path.exists(beside) else shutil.which("rt") or beside


def _write(path: str, text: str, *, force: bool) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() != text and not force:
                raise Misuse(f"{path} is there already and differs; give --force to write over it")
    except FileNotFoundError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _next_steps(unit: Unit) -> list[str]:
    """Return the commands that the operator runs next."""
    steps = []
    if not _has_user(unit.user):
        steps.append(
            f"useradd --system --home-dir {unit.root} --shell /usr/sbin/nologin {unit.user}"
        )
    steps.append(f"install -d -o {unit.user} -g {unit.user} -m 700 {unit.root}")
    if unit.kind == "node":
        steps.append(
            f"sudo -u {unit.user} {unit.program} node found --config {unit.config}"
            "   # once, for a new cluster"
        )
    steps += ["systemctl daemon-reload", f"systemctl enable --now {unit.file_name}"]
    return steps


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
