"""`penstock`: the commands together, and how any of them ends."""

import json
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer

from penstock.cli import INTERRUPTED
from penstock.cli.output import print_error
from penstock.errors import PenstockError
from penstock.version import __version__

EPILOG = """
[bold]Examples[/bold]

  penstock data make synthetic-arxiv --out data/arxiv

  penstock data import spec.yaml --out data/mine

  penstock partition data/arxiv --parts 4 --out data/arxiv-4

  penstock train --graph data/arxiv --model sage --epochs 5

  penstock plan --graph data/arxiv --cluster cluster.yaml

  penstock simulate workload.yaml --compare

  penstock predict runs/arxiv-sage-1 --out predictions.parquet
"""

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Imported when they are asked for: a command should not wait for what another needs.
_COMMANDS = {
    "data": "penstock.cli.data:data",
    "partition": "penstock.cli.partition:partition_command",
    "profile": "penstock.cli.profile:profile_command",
    "plan": "penstock.cli.plan:plan_command",
    "simulate": "penstock.cli.simulate:simulate_command",
    "compare": "penstock.cli.compare:compare_command",
    "train": "penstock.cli.train:train_command",
    "evaluate": "penstock.cli.use:evaluate_command",
    "predict": "penstock.cli.use:predict_command",
    "embed": "penstock.cli.use:embed_command",
    "report": "penstock.cli.report:report_command",
    "bench": "penstock.cli.bench:bench",
    "net": "penstock.cli.net:net",
}


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --version: print one JSON object.")] = False,
) -> None:
    """Train graph neural networks on graphs too large for the obvious script."""
    if version:
        print(json.dumps({"version": __version__}) if as_json else f"penstock {__version__}")
        raise typer.Exit
    if as_json:
        raise PenstockError("Put --json behind the command, as in `penstock data list --json`.")


def run() -> int:
    """The exit code of the command in `sys.argv`; its error is printed."""
    try:
        for name in _asked_for(sys.argv[1:]):
            _register(name)
        return int(app(standalone_mode=False) or 0)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except PenstockError as error:
        print_error(str(error))
    except OSError as error:
        print_error(f"{error.strerror or error}: {error.filename or 'no file named'}.")
    except MemoryError:
        print_error("Out of memory: use a machine with more, or a method that needs less (see docs/partitioning.md).")
    except Exception as error:
        # Typer carries its own copy of click, so its usage errors are known by their shape, not by their class.
        if not hasattr(error, "format_message"):
            raise
        print_error(error.format_message())
    return 2


def _asked_for(arguments: list[str]) -> list[str]:
    """The command named first; all of them where the answer may be a list of commands."""
    if arguments[:1] == ["--version"]:
        return []
    named = [argument for argument in arguments if not argument.startswith("-")]
    return named[:1] if named and named[0] in _COMMANDS else list(_COMMANDS)


def _register(name: str) -> None:
    module, _, attribute = _COMMANDS[name].partition(":")
    command = getattr(import_module(module), attribute)
    if isinstance(command, typer.Typer):
        for each in command.registered_commands:
            each.callback = each.callback and _interruptible(each.callback)
        app.add_typer(command, name=name)
    else:
        app.command(name)(_interruptible(command))


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose interruption is a sentence; Typer would end it without one."""

    @wraps(command)
    def wrapped(*given: Any, **named: Any) -> None:
        try:
            command(*given, **named)
        except KeyboardInterrupt as interrupt:
            print_error(str(interrupt) or "Interrupted: nothing was written.")
            raise typer.Exit(INTERRUPTED) from None

    return wrapped
