"""The command `rt`: finds the subcommand, and turns what ends it into a sentence and a code."""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, shell_complete

from rt.cli.console import complain
from rt.cli.exits import CODES_HELP, exit_code, sentence
from rt.cli.parent import end_with_parent
from rt.version import __version__

PROGRAM: Final = "rt"
COMPLETE_VARIABLE: Final = "_RT_COMPLETE"
_log: Final = logging.getLogger("rt.cli")

# name: (module:object, what the list of commands says). A module is imported when its command
# is run, so that `rt publish` does not wait for TLS, and completion for nothing.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "archive": ("rt.cli.archive:archive", "Show and change how long a stream is kept."),
    "certs": ("rt.cli.certs:certs", "Make and show certificates."),
    "cluster": ("rt.cli.cluster:cluster", "Write the configurations of a new cluster."),
    "completion": ("rt.cli.completion:completion", "Print the completion script of a shell."),
    "demo": ("rt.demo.command:demo", "Run a whole stream on real data."),
    "dump": ("rt.cli.dump:dump", "Show the frames of a log as they are."),
    "export": ("rt.cli.export:export", "Convert a log to Parquet."),
    "index": ("rt.cli.index:index", "Check or rebuild the index of a log."),
    "log-history": ("rt.cli.log_history:log_history", "Tell the history of every file of a log."),
    "node": ("rt.cli.run:node", "Run a node of a stream."),
    "publish": ("rt.cli.publish:publish", "Publish lines to a session."),
    "pull": ("rt.cli.run:pull", "Copy the merged log from a node."),
    "push": ("rt.cli.run:push", "Ship sessions to the nodes."),
    "restore": ("rt.cli.offload:restore", "Make a log of offloaded copies."),
    "status": ("rt.cli.cluster:status", "Show how the nodes of a stream stand."),
    "subscribe": ("rt.cli.subscribe:subscribe", "Read a stream."),
    "up": ("rt.cli.cluster:up", "Run a whole cluster on this machine, for development."),
    "verify": ("rt.cli.verify:verify", "Check every byte of a log, or that copies are equal."),
}


class Program(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command line and exit: a code always, a sentence where it is not 0."""
        extra = {key: extra[key] for key in extra.keys() & {"obj", "default_map", "terminal_width"}}
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            sys.exit(shell_complete(self, extra, PROGRAM, COMPLETE_VARIABLE, instruction))
        sys.exit(self._run(list(sys.argv[1:] if args is None else args), extra))

    def _run(self, args: list[str], extra: dict[str, Any]) -> int:
        try:
            with self.make_context(PROGRAM, args, **extra) as context:
                self.invoke(context)
                sys.stdout.flush()
        except click.exceptions.Exit as error:
            return error.exit_code
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place
            return _tell(error)
        return 0


@click.command(cls=Program, no_args_is_help=True, epilog=CODES_HELP)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Tell on stderr what goes on.")
@click.option("--debug", is_flag=True, help="Tell everything, and show the traceback of an error.")
def rt(*, verbose: bool, debug: bool) -> None:
    """A log-shipping reliable transport.

    \b
    seq 1000000 | rt publish --stream numbers --session one
    rt subscribe --stream numbers --own-session one --no-follow --from last:3
    rt demo
    """  # noqa: D301 - click reads the backspace character
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )


def main() -> None:
    """Run `rt` with the arguments of this process."""
    _open_closed()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not of one that was started by nohup
            signal.signal(number, signal.default_int_handler)  # what was begun is ended in order
    end_with_parent()
    rt.main()


def _open_closed() -> None:
    """Let a standard file that came closed lead nowhere: a log's file would get its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == number:
            setattr(sys, name, open(number, mode))  # noqa: SIM115 - for as long as we live


def _tell(error: BaseException) -> int:
    """Say on stderr why the program ends; return the code it ends with."""
    _log.debug("what ended it", exc_info=error)
    if isinstance(error, BrokenPipeError):
        _discard_output()
    with suppress(OSError):  # nobody can be told, but a script sees the code
        _say(error)
    return exit_code(error)


def _say(error: BaseException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)  # all of its help: no sentence is missing
        return
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
    if words := sentence(error):
        complain(words)


def _discard_output() -> None:
    """Let what is still buffered go nowhere: Python would complain of it while it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
