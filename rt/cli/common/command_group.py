"""CommandGroup: a command with subcommands, which suggests a name for a mistyped one."""

import difflib
from typing import Final

import click

_LINE: Final = 200  # characters for a subcommand's help line: enough for a whole first sentence
# Least `difflib` ratio of a suggestion: `stauts` has 0.83 to `status`, `producer` 0.6 to `node`,
# `plan` 0.5 to `pull`.
_CLOSE: Final = 0.7
_CLOSE_ENOUGH: Final = 0.62
_VERSION: Final = "--version"  # the option of the program, known in every group
# What other programs call our commands.
_OTHER_WORDS: Final = {
    "cat": "subscribe", "consume": "subscribe", "read": "subscribe", "sub": "subscribe",
    "tail": "subscribe", "delete": "forget", "rm": "forget", "history": "log-history",
    "info": "show", "describe": "show", "ls": "list", "list": "show", "mirror": "pull",
    "metrics": "node --http", "produce": "publish", "pub": "publish", "write": "publish",
    "replay": "subscribe --from", "run": "node", "server": "node", "start": "node",
    "topic": "stream", "topics": "stream list", "version": _VERSION, "repair": "verify --repair",
    "gc": "archive policy", "retention": "archive policy", "consumer": "cursor",
}  # fmt: skip


class CommandGroup(click.Group):
    """A group that suggests what a mistyped subcommand may mean."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that the arguments name.

        Raises:
            click.UsageError: There is none; the message suggests the nearest.
        """
        name = args[0] if args else ""
        if name and self.get_command(ctx, name) is None:
            ctx.fail(f"no such command: {name!r}{self._suggestion(ctx, name)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands, each with the whole of its first sentence."""
        rows = [
            (name, command.get_short_help_str(_LINE))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _suggestion(self, ctx: click.Context, name: str) -> str:
        names = self.list_commands(ctx)
        meant = _OTHER_WORDS.get(name, "")
        if meant == _VERSION:
            return f"; did you mean {ctx.find_root().command_path} {meant}?"
        if meant.partition(" ")[0] in names:
            return f"; did you mean {ctx.command_path} {meant}?"
        near = difflib.get_close_matches(name, names, n=3, cutoff=_CLOSE_ENOUGH)
        near = near or [each for each in names if each.startswith(name)]
        if not difflib.get_close_matches(name, near, cutoff=_CLOSE):
            near = self._elsewhere(ctx, name) or near
        if not near:
            return f"; {ctx.command_path} --help lists them"
        return f"; did you mean {' or '.join(near)}?"

    def _elsewhere(self, ctx: click.Context, name: str) -> list[str]:
        """Return the subcommands of this name in other groups, each with its group."""
        groups = ((each, self.get_command(ctx, each)) for each in self.list_commands(ctx))
        return [
            f"{path} {name}"
            for path, group in groups
            if isinstance(group, click.Group) and name in group.list_commands(ctx)
        ]
