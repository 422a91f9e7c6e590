"""The command `rt`: finds the subcommand, and turns an error into a message and an exit code."""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, TypeGuard

import click
from click.shell_completion import CompletionItem, shell_complete

from rt.cli.common.command_group import CommandGroup
from rt.cli.common.console import complain
from rt.cli.common.environment import check_environment
from rt.cli.common.exits import CODES_HELP, exit_code, sentence
from rt.cli.common.help import HelpContext, add_full_help, fold_help
from rt.cli.common.logs import JSON, TEXT, add_verbosity, configure_log, use_format
from rt.cli.common.wait_notes import WaitNotes
from rt.cli.process.parent import end_with_parent
from rt.errors import Misuse
from rt.version import __version__

PROGRAM: Final = "rt"
COMPLETE_VARIABLE: Final = "_RT_COMPLETE"
_PLUGIN: Final = "check"  # the command with the exit codes of monitoring plugins
# long-running commands, which report their waits themselves
_LASTING: Final = ("bridge", "gateway", "node", "pull", "push", "up")
_log: Final = logging.getLogger("rt.cli")

# section: {name: (module:object, its line in the list of commands)}. A module is imported when its
# command runs, so that `rt publish` does not load TLS, and completion loads nothing.
SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Every day": {
        "demo": ("rt.demo.command:demo", "Run a whole stream on real data."),
        "up": ("rt.cli.cluster.up:up", "Run a whole cluster on this machine, for development."),
        "publish": ("rt.cli.data.publish:publish", "Publish lines to a session."),
        "push": ("rt.cli.data.push:push", "Ship sessions to the nodes."),
        "gateway": ("rt.cli.data.gateway:gateway", "Serve a stream over HTTP, to any language."),
        "pull": ("rt.cli.data.pull:pull", "Copy the merged log from a node."),
        "bridge": ("rt.cli.data.bridge:bridge", "Publish in a cluster what another merged."),
        "subscribe": ("rt.cli.data.subscribe:subscribe", "Read a stream."),
        "query": ("rt.cli.data.query:query", "Query a log by SQL."),
        "export": ("rt.cli.logs.export:export", "Convert a log to Parquet."),
    },
    "Look": {
        "status": ("rt.cli.look.status:status", "Show a stream's nodes, sessions and readers."),
        "doctor": ("rt.cli.look.doctor:doctor", "Look for what is wrong, and say what to do."),
        "check": ("rt.cli.look.check:check", "Check a stream, for a monitoring system."),
        "trace": ("rt.cli.look.trace:trace", "Show where a message was, or where it waits."),
        "log-history": (
            "rt.cli.look.log_history:log_history",
            "Show the history of a log's files.",
        ),
        "dump": ("rt.cli.logs.dump:dump", "Show the frames of a log."),
    },
    "Manage a stream": {
        "session": ("rt.cli.manage.session:session", "Show sessions, and decide for them."),
        "cursor": ("rt.cli.manage.cursor:cursor", "Show and move the positions of readers."),
        "group": (
            "rt.cli.manage.group:group",
            "Show and move groups of readers that divide a stream.",
        ),
        "archive": ("rt.cli.manage.archive:archive", "Show and change how long a stream is kept."),
        "cluster": ("rt.cli.cluster.cluster:cluster", "Make a cluster, and change its members."),
        "standby": ("rt.cli.cluster.standby:standby", "Show a standby, and promote it."),
        "stream": ("rt.cli.cluster.stream:stream", "Make, list and drop the streams of a node."),
    },
    "Repair": {
        "verify": ("rt.cli.logs.verify:verify", "Check every byte of a log, and compare copies."),
        "index": ("rt.cli.logs.index:index", "Check or rebuild the index of a log."),
        "restore": ("rt.cli.logs.restore:restore", "Make a log from offloaded copies."),
        "bundle": ("rt.cli.look.bundle:bundle", "Collect what a support request needs."),
    },
    "Set up": {
        "node": ("rt.cli.cluster.node:node", "Run a node of a stream."),
        "certs": ("rt.cli.cluster.certs:certs", "Make and show certificates."),
        "service": ("rt.cli.cluster.service:service", "Install a program as a service of systemd."),
        "config": ("rt.cli.common.config:config", "Show settings, and where each comes from."),
        "completion": ("rt.cli.completion:completion", "Print a shell's completion script."),
        "help": ("rt.cli.common.help:show_help", "Show the help of a command."),
    },
}
COMMANDS: Final = {name: each for part in SECTIONS.values() for name, each in part.items()}


class Program(CommandGroup):
    """The group of all commands of `rt`; imports a command only when it is used."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        add_full_help(command)
        add_verbosity(command)
        fold_help(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands by section, without importing them."""
        widest = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                rows = [(name.ljust(widest), line) for name, (_, line) in commands.items()]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command line, and exit with its exit code; report an error on stderr."""
        extra = {key: extra[key] for key in extra.keys() & {"obj", "default_map", "terminal_width"}}
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            sys.exit(shell_complete(self, extra, PROGRAM, COMPLETE_VARIABLE, instruction))
        sys.exit(self._run(list(sys.argv[1:] if args is None else args), extra))

    def _run(self, args: list[str], extra: dict[str, Any]) -> int:
        command = next((each for each in args if each in COMMANDS), "")  # not `rt index check`
        try:
            with (
                self.make_context(PROGRAM, args, **extra) as context,
                nullcontext() if command in _LASTING else WaitNotes(),
            ):
                self.invoke(context)
                sys.stdout.flush()
        except click.exceptions.Exit as error:
            return error.exit_code
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place
            if isinstance(error, click.UsageError | Misuse) and command == _PLUGIN:
                return self._unknown(error)
            return _report(error)
        return 0

    def _unknown(self, error: Exception) -> int:
        """Report as UNKNOWN an error that kept `rt check` from starting; return the exit code.

        Such an error usually exits with 2, which would mean CRITICAL to a monitoring system.
        """
        check = importlib.import_module(COMMANDS[_PLUGIN][0].partition(":")[0])
        code: int = check.unknown(error).exit_code
        return code


@click.command(
    cls=Program, no_args_is_help=True, epilog=CODES_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Log progress to stderr.")
@click.option(
    "--debug", is_flag=True, help="Log everything to stderr, with the traceback of an error."
)
@click.option(
    "--log-format", type=click.Choice([TEXT, JSON]), default=TEXT, envvar="RT_LOG_FORMAT",
    help="Log lines as text, or as one JSON object each.  [RT_LOG_FORMAT]",
)  # fmt: skip
def rt(*, verbose: bool, debug: bool, log_format: str) -> None:
    """A log-shipping reliable transport.

    \b
    seq 1000000 | rt publish --stream numbers --session one
    rt subscribe --stream numbers --own-session one --no-follow --from last:3
    rt demo
    rt help publish
    """  # noqa: D301 - click reads the backspace character
    check_environment(os.environ, rt)
    configure_log(logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING)
    use_format(log_format)


def main() -> None:
    """Run `rt` with the arguments of this process."""
    _open_closed()
    # ignored when a script runs us in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP; keep that
            signal.signal(number, signal.default_int_handler)  # so that `finally` runs
    end_with_parent()
    rt.main()


def _open_closed() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed.

    Otherwise the next file that is opened, such as a log's, would get the closed descriptor.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            setattr(sys, name, open(number, mode))  # noqa: SIM115 - open until we end


def _report(error: BaseException) -> int:
    """Print to stderr why the program ends; return its exit code."""
    _log.debug("ended by this error", exc_info=error)
    if isinstance(error, BrokenPipeError):
        _discard_output()
    with suppress(OSError):  # stderr may be gone too; a script still gets the code
        _explain(error)
    return exit_code(error)


def _explain(error: BaseException) -> None:
    if _is_help(error):
        click.echo(error.format_message(), err=True)
        return
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
    if reason := sentence(error):
        complain(reason)


def _is_help(error: BaseException) -> TypeGuard[click.UsageError]:
    """Return whether an error is how click shows a group's help if no subcommand is given."""
    help_error = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.1 has none
    return isinstance(error, help_error)


def _discard_output() -> None:
    """Discard buffered output: the reader is gone, so Python would fail to write it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
