"""A flag for every field of a job, made from the job itself: what a run is told is written down once."""

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from penstock.graph.documents import AUTO, is_auto
from penstock.train.job import PARTS, Job


def with_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag a field in place of its `**fields`; only those given are passed on.

    Where a flag of the command's own has a field's name, the field is left to the job file.
    """
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(name, Job.model_fields[name], part)
        )
        for part, options in PARTS.items()
        for name in options.model_fields
        if name not in signature.parameters
    ]

    def wrapped(**given: Any) -> None:
        names = {parameter.name for parameter in own}
        fields = {name: value for name, value in given.items() if name not in names and value is not None}
        command(**{name: given[name] for name in names}, **fields)

    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    wrapped.__doc__ = command.__doc__
    return wrapped


def default_text(field: FieldInfo) -> str:
    """A default as it is written on the command line."""
    value = field.get_default(call_default_factory=True)
    if value is None or value == {}:
        return ""
    if is_auto(field) and value == 0:
        return AUTO
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def choices(field: FieldInfo) -> list[str]:
    """The words a field takes, where it takes only some."""
    found: list[str] = []
    waiting = [field.annotation]
    while waiting:
        kind = waiting.pop(0)
        if get_origin(kind) is Literal:
            found += [str(value) for value in get_args(kind)]
        elif get_origin(kind) in (Union, UnionType, Annotated):
            waiting += get_args(kind)
    return found


def _flag(name: str, field: FieldInfo, part: str) -> Any:
    words, default = choices(field), default_text(field)
    text = f"{field.description}".capitalize() if not words else f"{field.description} ({', '.join(words)})"
    shown = f"{text} [default: {default}]" if default else text
    option = typer.Option(
        f"--{name.replace('_', '-')}" + (f"/--no-{name.replace('_', '-')}" if field.annotation is bool else ""),
        help=shown.replace("[", "\\["),
        rich_help_panel=part,
        show_default=False,
        metavar=None if field.annotation is bool else _metavar(field),
    )
    return Annotated[_plain_type(field) | None, option]


def _plain_type(field: FieldInfo) -> Any:
    if get_origin(field.annotation) in (list, dict) or is_auto(field):
        return str
    kinds = [kind for kind in (get_args(field.annotation) or [field.annotation]) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (bool, int, float) and not choices(field) else str


def _metavar(field: FieldInfo) -> str:
    if is_auto(field):
        return "N"
    kind = _plain_type(field)
    if get_origin(field.annotation) is list:
        return "A,B,..."
    if get_origin(field.annotation) is dict:
        return "{KEY: VALUE}"
    return {int: "N", float: "X"}.get(kind, "NAME")
