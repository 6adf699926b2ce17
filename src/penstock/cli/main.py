"""`penstock`: the commands together, and how any of them ends."""

import json
from typing import Annotated

import typer

from penstock.cli.data import data
from penstock.cli.output import print_error
from penstock.cli.partition import partition_command
from penstock.errors import PenstockError
from penstock.version import __version__

EPILOG = """
[bold]Examples[/bold]

  penstock data make synthetic-arxiv --out data/arxiv

  penstock data import spec.yaml --out data/mine

  penstock partition data/arxiv --parts 4 --out data/arxiv-4
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
app.add_typer(data, name="data")
app.command("partition")(partition_command)


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
