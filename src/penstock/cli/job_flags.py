"""A flag for every field of a job, generated from the job itself.

`--help` shows the flags that most runs need, `--help-all` shows all of them.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from penstock.train.job import Job

_MARK = "takes_job_flags"
_TRUTHS = ("true", "false", "yes", "no")
SHORT_HELP = (
    *("graph", "task", "label", "split"),
    *("sampler", "fanouts"),
    *("bins", "keep"),
    *("model", "layers", "hidden", "dropout"),
    *("negatives", "scorer"),
    *("epochs", "batch_size", "lr", "weight_decay", "metric", "patience", "seed", "threads", "run"),
    "device",
)
"""Fields that `--help` shows. It leaves the others to `--help-all`, where a new field appears by itself."""


def takes_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Mark a command whose `**fields` are the fields of a job; `with_flags` makes its flags."""
    setattr(command, _MARK, True)
    return command


def chosen_job(file: Path | None, fields: dict[str, Any]) -> "Job":
    """The job of a command: that of a file with these fields in place of its own, or of the fields alone."""
    from penstock.train.job import make_job, read_job

    return make_job(fields, "The command") if file is None else read_job(file, fields)


def refuse_value_of_switch(*files: str) -> None:
    """Refuse a word in the place of a job file that was meant as the value of a flag which takes none."""
    for word in files:
        if word.lower() in _TRUTHS:
            raise PenstockError(
                f"{word!r} follows a flag that takes no value: write --filtered or --no-filtered, for example.",
                code="invalid-value",
            )


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command in the form that Typer expects: with the flags of a job where it is marked so."""
    return _with_job_flags(command) if hasattr(command, _MARK) else command


def _with_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each field in place of its `**fields`; only those given are passed on.

    Where a flag of the command's own has a field's name, the field is left to the job file.
    """
    from penstock.train.job import PARTS, JobFields

    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_flag(name, JobFields.model_fields[name], part),
        )
        for part, options in PARTS.items()
        for name in options.model_fields
        if name not in signature.parameters
    ]
    hidden = sum(parameter.name not in SHORT_HELP for parameter in added)
    help_all = inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=help_all_option(hidden)
    )

    def wrapped(**given: Any) -> None:
        names = {parameter.name for parameter in own}
        del given[help_all.name]
        fields = {name: value for name, value in given.items() if name not in names and value is not None}
        command(**{name: given[name] for name in names}, **fields)

    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    wrapped.__signature__ = signature.replace(parameters=[*own, help_all, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, help_all, *added]}
    wrapped.__doc__ = command.__doc__
    return wrapped


def default_text(field: "FieldInfo") -> str:
    """A default as it is written on the command line."""
    value = field.get_default(call_default_factory=True)
    if value is None or value == {}:
        return ""
    if _is_auto(field) and value == 0:
        return "auto"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def choices(field: "FieldInfo") -> list[str]:
    """The words that a field accepts; empty where it accepts any value."""
    found: list[str] = []
    waiting = [field.annotation]
    while waiting:
        kind = waiting.pop(0)
        if get_origin(kind) is Literal:
            found += [str(value) for value in get_args(kind)]
        elif get_origin(kind) in (Union, UnionType, Annotated, list):
            waiting += get_args(kind)
    return list(dict.fromkeys(found))


def _flag(name: str, field: "FieldInfo", part: str) -> Any:
    words, default = choices(field), default_text(field)
    said = f"{field.description}"
    text = said[:1].upper() + said[1:] + (f" ({', '.join(words)})" if words else "")
    shown = f"{text} [default: {default}]" if default else text
    option = typer.Option(
        f"--{name.replace('_', '-')}" + (f"/--no-{name.replace('_', '-')}" if field.annotation is bool else ""),
        help=shown.replace("[", "\\["),
        rich_help_panel=part,
        show_default=False,
        metavar=None if field.annotation is bool else _metavar(field),
        hidden=name not in SHORT_HELP,
        autocompletion=_completer(words) if words else None,
    )
    return Annotated[_plain_type(field) | None, option]


def _completer(words: list[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _is_auto(field: "FieldInfo") -> bool:
    # Imported when a command with flags of a job is built: the list of commands does not wait for pydantic.
    from penstock.graph.documents import is_auto

    return is_auto(field)


def _plain_type(field: "FieldInfo") -> Any:
    if get_origin(field.annotation) in (list, dict) or _is_auto(field):
        return str
    kinds = [kind for kind in (get_args(field.annotation) or [field.annotation]) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float) and not choices(field) else str


def _metavar(field: "FieldInfo") -> str:
    if _is_auto(field):
        return "N"
    kind = _plain_type(field)
    if get_origin(field.annotation) is list:
        return "A,B,..."
    if get_origin(field.annotation) is dict:
        return "{KEY: VALUE}"
    return {int: "N", float: "X"}.get(kind, "NAME")


def help_all_option(hidden: int) -> Any:
    """The option `--help-all`, for a command that hides `hidden` other flags."""
    text = f"Show all flags, {hidden} more than --help; docs/job.md describes them."
    return Annotated[bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help=text)]


def show_hidden(command: Any) -> None:
    """Make help and completion of a command show all of its flags."""
    for parameter in command.params:
        parameter.hidden = False


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        show_hidden(context.command)
        typer.echo(context.get_help())
        raise typer.Exit
