"""CommandGroup: a command with subcommands, which suggests one where a name is mistyped."""

import difflib
from typing import Final

import click

# Of difflib's ratio: `stauts` has 0.83 to `status`, `plan` 0.5 to `pull`, `sing` 0.4 to `push`.
_CLOSE: Final = 0.7
_CLOSE_ENOUGH: Final = 0.5


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

    def _suggestion(self, ctx: click.Context, name: str) -> str:
        names = self.list_commands(ctx)
        near = difflib.get_close_matches(name, names, n=3, cutoff=_CLOSE_ENOUGH)
        near = near or [each for each in names if each.startswith(name)]
        if not difflib.get_close_matches(name, near, cutoff=_CLOSE):
            near = self._elsewhere(ctx, name) or near
        if not near:
            return f"; {ctx.command_path} --help lists them"
        return f"; did you mean {' or '.join(near)}?"

    def _elsewhere(self, ctx: click.Context, name: str) -> list[str]:
        """Return the groups here that have a subcommand of this name, with it."""
        groups = ((each, self.get_command(ctx, each)) for each in self.list_commands(ctx))
        return [
            f"{path} {name}"
            for path, group in groups
            if isinstance(group, click.Group) and name in group.list_commands(ctx)
        ]
