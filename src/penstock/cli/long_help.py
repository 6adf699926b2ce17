"""`--help-all`: all flags of a command, where `--help` shows those that most runs need."""

from typing import Annotated, Any

import typer


def help_all_option(hidden: int) -> Any:
    """The flag, for a command that hides so many others."""
    text = f"Show all flags, {hidden} more than --help; docs/job.md describes them."
    return Annotated[bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help=text)]


def show_hidden(command: Any) -> None:
    """Let help and completion of a command name all of its flags."""
    for parameter in command.params:
        parameter.hidden = False


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        show_hidden(context.command)
        typer.echo(context.get_help())
        raise typer.Exit
