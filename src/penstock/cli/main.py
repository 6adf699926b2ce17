"""`penstock`: all commands, and how their errors and interruptions are reported."""

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.cli.job_flags import show_hidden, with_flags
from penstock.cli.output import print_error
from penstock.errors import INTERRUPTED, Code, PenstockError
from penstock.graph.files import FEWER_FILES, TOO_MANY_FILES
from penstock.registry import Registry
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
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Imported when they are needed, so that a command does not load the modules of another.
COMMANDS: Registry[Any] = Registry(
    "command",
    "penstock.commands",
    {
        "data": "penstock.cli.data:data",
        "partition": "penstock.cli.partition:partition_command",
        "profile": "penstock.cli.profile:profile_command",
        "plan": "penstock.cli.plan:plan_command",
        "simulate": "penstock.cli.simulate:simulate_command",
        "paths": "penstock.cli.paths:paths",
        "compare": "penstock.cli.report:compare_command",
        "train": "penstock.cli.train:train_command",
        "recipes": "penstock.cli.train:recipes_command",
        "memory": "penstock.cli.train:memory_command",
        "evaluate": "penstock.cli.use:evaluate_command",
        "predict": "penstock.cli.use:predict_command",
        "embed": "penstock.cli.use:embed_command",
        "export": "penstock.cli.use:export_command",
        "explain": "penstock.cli.use:explain_command",
        "report": "penstock.cli.report:report_command",
        "bench": "penstock.cli.profile:bench",
        "net": "penstock.cli.cluster:net",
        "cluster": "penstock.cli.cluster:cluster",
        "serve": "penstock.cli.queue:serve_command",
        "submit": "penstock.cli.queue:submit_command",
        "queue": "penstock.cli.queue:queue_command",
        "logs": "penstock.cli.queue:logs_command",
        "cancel": "penstock.cli.queue:cancel_command",
        "retry": "penstock.cli.queue:retry_command",
        "wait": "penstock.cli.queue:wait_command",
    },
)


_COMPLETES = "_PENSTOCK_COMPLETE"
"""Set by a shell that asks for completions."""


class _CompletedCommand(TyperCommand):
    """A command whose hidden flags are completed as well."""

    def shell_complete(self, context: Any, incomplete: str) -> Any:
        show_hidden(self)
        return super().shell_complete(context, incomplete)


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
        raise PenstockError("Put --json after the command, as in `penstock data list --json`.", code="usage")


def run() -> int:
    """Run the command in `sys.argv`, print its error if it has one, and return its exit code."""
    try:
        _register_for(_words())
        code = int(app(standalone_mode=False) or 0)
        if code == INTERRUPTED:
            # Typer exits with this code, without a message, where a signal arrives in its own code.
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output (`| head`) has closed it; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort, _InterruptionError) as interrupt:
        print_error(str(interrupt) or "Interrupted: nothing was written.", "interrupted")
        return INTERRUPTED
    except PenstockError as error:
        print_error(str(error), error.code)
    except OSError as error:
        print_error(_of_system(error), _code_of_system(error))
    except MemoryError:
        print_error(
            "Out of memory: use a machine with more, or a method that needs less (see docs/partitioning.md).",
            "out-of-memory",
        )
    except Exception as error:
        # Typer carries its own copy of click, so its usage errors are recognised by their attributes, not by their
        # class.
        if not hasattr(error, "format_message"):
            raise
        print_error(_usage_sentence(error), "usage")
    return 2


def _usage_sentence(error: Any) -> str:
    """The sentence of a usage error; for a flag of an earlier release or of PyG, with what to write instead."""
    from penstock.train.internals import REMOVED
    from penstock.train.job import OTHER_NAMES

    name = str(getattr(error, "option_name", "")).lstrip("-").removeprefix("no-").replace("-", "_")
    if name in REMOVED and _takes_job(error):
        return f"{error.option_name} is no flag any more: {REMOVED[name]}."
    meant = f": use --{OTHER_NAMES[name].replace('_', '-')}." if name in OTHER_NAMES else ""
    return f"{error.format_message()}{meant}"


def _takes_job(error: Any) -> bool:
    """Whether a usage error is from a command with the flags of a job."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    return any(parameter.name == "fanouts" for parameter in getattr(command, "params", ()))


def _of_system(error: OSError) -> str:
    """The sentence of an error of the system, which names the file where opening it failed but not
    where writing did.
    """
    what = error.strerror or str(error)
    if error.filename:
        return f"{what}: {error.filename}."
    if error.errno in TOO_MANY_FILES:
        return f"{what}: {FEWER_FILES}"
    return f"{what}, while a file was being read or written: see whether a disk is full (df -h), then try again."


def _code_of_system(error: OSError) -> Code:
    """The code of an error of the system; most often a disk is full."""
    if isinstance(error, FileNotFoundError):
        return "file-not-found"
    return "not-permitted" if isinstance(error, PermissionError) else "write-failed"


def _words() -> list[str]:
    """The words after `penstock`; during shell completion they are in the environment."""
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    return typed.split()[1:] if _COMPLETES in os.environ else sys.argv[1:]


def _register_for(words: list[str]) -> None:
    """Register the command that is named first, or a summary of each where commands may be listed."""
    if words[:1] == ["--version"]:
        return
    named = [word for word in words if not word.startswith("-")]
    if named and named[0] in COMMANDS:
        _register(named[0], COMMANDS[named[0]])
    else:
        for name in COMMANDS:
            app.command(name)(_summary(COMMANDS[name]))


def _summary(command: Any) -> Callable[[], None]:
    """A command without its flags, which take longest to make when commands are listed."""

    def listed() -> None:
        """Never called: the command that runs is registered in full."""

    listed.__doc__ = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    return listed


def _register(name: str, command: Any) -> None:
    if isinstance(command, typer.Typer):
        for each in command.registered_commands:
            each.callback = each.callback and _interruptible(each.callback)
        app.add_typer(command, name=name)
    else:
        app.command(name, cls=_CompletedCommand)(_interruptible(with_flags(command)))


class _InterruptionError(Exception):
    """Carries a KeyboardInterrupt through Typer."""


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an interruption's message kept; Typer would end the command without one."""

    @wraps(command)
    def wrapped(*given: Any, **named: Any) -> None:
        try:
            command(*given, **named)
        except KeyboardInterrupt as interrupt:
            raise _InterruptionError(*interrupt.args) from None

    return wrapped
