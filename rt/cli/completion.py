"""`rt completion`: prints a shell's completion script."""

import click
from click.shell_completion import get_completion_class

from rt.cli.program import COMPLETE_VARIABLE, PROGRAM


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    rt completion bash >> ~/.bashrc
    rt completion zsh >> ~/.zshrc
    rt completion fish > ~/.config/fish/completions/rt.fish
    """  # noqa: D301 - click reads the backspace character
    program = context.find_root().command
    if found := get_completion_class(shell):
        click.echo(found(program, {}, PROGRAM, COMPLETE_VARIABLE).source())
