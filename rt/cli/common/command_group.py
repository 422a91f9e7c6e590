"""CommandGroup: a command with subcommands, which suggests a name for a mistyped one."""

import difflib
from typing import Final

import click

_LINE: Final = 200  # characters for a subcommand's help line: enough for a whole first sentence
# `difflib` ratios. A name is similar enough to be suggested from _CLOSE_ENOUGH on; below _CLOSE, a
# command in a group below is suggested instead if it has exactly the mistyped name. `stauts` has
# 0.83 to `status`, `producer` 0.6 to `node`, `plan` 0.5 to `pull`.
_CLOSE: Final = 0.7
_CLOSE_ENOUGH: Final = 0.62
_VERSION: Final = "--version"  # the option of the program, known in every group
# Names that other programs use for our commands. Of several commands, the first that the group has
# is suggested, otherwise the first that the program has. A name such as `cluster info` applies only
# in the group `cluster`.
OTHER_WORDS: Final = {
    **dict.fromkeys(
        ["cat", "consume", "fetch", "get", "listen", "poll", "read", "receive", "recv", "sub",
         "tail", "watch", "xread"], "subscribe",
    ),
    **dict.fromkeys(["producer", "produce", "pub", "put", "send", "write", "xadd"], "publish"),
    **dict.fromkeys(["del", "delete", "rm", "remove"], "forget, drop, remove, revoke"),
    **dict.fromkeys(["add", "create", "new"], "create, issue, init"),
    **dict.fromkeys(["describe", "info", "list", "ls"], "list, show, status"),
    **dict.fromkeys(
        ["brokers", "cluster info", "cluster list", "cluster ls", "cluster members",
         "cluster nodes", "cluster show", "cluster status", "lag", "leader", "members", "nodes",
         "replicas", "stat", "stats", "top"], "status",
    ),
    **dict.fromkeys(["health", "healthcheck", "monitor", "ping"], "check"),
    **dict.fromkeys(["ca", "cert", "certificate", "certificates", "key", "keys", "tls"], "certs"),
    **dict.fromkeys(["acl", "acls", "auth", "permissions", "user", "users"], "certs grants"),
    **dict.fromkeys(["consumer", "consumers", "offset", "offsets", "subscriptions"], "cursor"),
    **dict.fromkeys(["consumer-group", "consumer-groups", "groups"], "group"),
    **dict.fromkeys(["clone", "copy", "mirror", "replicate", "sync"], "pull"),
    **dict.fromkeys(["compact", "gc", "purge", "retention", "trim", "truncate"], "archive policy"),
    **dict.fromkeys(["backup", "snapshot"], "archive offload"),
    **dict.fromkeys(["broker", "daemon", "run", "server", "start"], "node"),
    **dict.fromkeys(["history", "logs"], "log-history"),
    **dict.fromkeys(["fsck", "scan"], "verify"),
    **dict.fromkeys(["env", "settings"], "config explain"),
    **dict.fromkeys(["failover", "switchover"], "standby promote"),
    **dict.fromkeys(["http", "proxy", "rest", "serve"], "gateway"),
    **dict.fromkeys(["example", "quickstart", "tutorial"], "demo"),
    "kill": "up --kill", "metrics": "node --http", "man": "help", "repair": "verify --repair",
    "replay": "subscribe --from", "sql": "query", "topic": "stream", "topics": "stream list",
    "version": _VERSION,
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
        if meant := self._translated(ctx, name, names):
            return f"; did you mean {meant}?"
        near = difflib.get_close_matches(name, names, n=3, cutoff=_CLOSE_ENOUGH)
        near = near or [each for each in names if each.startswith(name)]
        if not difflib.get_close_matches(name, near, cutoff=_CLOSE):
            near = self._elsewhere(ctx, name) or near
        if not near:
            return f"; {ctx.command_path} --help lists them"
        return f"; did you mean {' or '.join(near)}?"

    def _translated(self, ctx: click.Context, name: str, names: list[str]) -> str:
        """Return our command line for a name that another program uses; "" if there is none."""
        root = ctx.find_root()
        words = OTHER_WORDS.get(f"{ctx.info_name} {name}") or OTHER_WORDS.get(name, "")
        if words == _VERSION:
            return f"{root.command_path} {words}"
        meant = words.split(", ") if words else []
        for context, known in ((ctx, names), (root, _names_of(root))):
            for each in meant:
                if each.partition(" ")[0] in known:
                    return f"{context.command_path} {each}"
        return ""

    def _elsewhere(self, ctx: click.Context, name: str) -> list[str]:
        """Return the subcommands of this name in the groups below, each with the group's name."""
        groups = ((each, self.get_command(ctx, each)) for each in self.list_commands(ctx))
        return [
            f"{path} {name}"
            for path, group in groups
            if isinstance(group, click.Group) and name in group.list_commands(ctx)
        ]


def _names_of(context: click.Context) -> list[str]:
    """Return the names of the subcommands of a context's command."""
    command = context.command
    return command.list_commands(context) if isinstance(command, click.Group) else []
