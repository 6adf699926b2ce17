"""Arguments of the functions of `ps`: a graph, a model, functions and the fields of a job."""

import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from penstock.errors import PenstockError
from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.train.job import PARTS, JobFields
from penstock.train.user_functions import GivenFunctions

# Models as Python users give them.


def checked_model(model: Any) -> torch.nn.Module | None:
    """The module that was given, or None where a name was, or nothing."""
    if model is None or isinstance(model, str):
        return None
    if isinstance(model, torch.nn.Module):
        return model
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise PenstockError(
            f"The model is the class {model.__name__}: give a module made of it, such as {model.__name__}(...).",
            code="wrong-type",
        )
    raise PenstockError(
        f"The model is of type {type(model).__name__}: give the name of a model, or a torch.nn.Module.",
        code="wrong-type",
    )


# Graphs as Python users give them.


def opened(graph: Any) -> Graph:
    """The argument if it is a graph, else the graph that `ps.load` reads from it."""
    return graph if isinstance(graph, Graph) else load(graph)


def opened_or_named(graph: Any, fields: dict[str, Any]) -> Graph | None:
    """The graph, unless it is a path or the name of a data set: then `fields` have it, and the job opens it."""
    if isinstance(graph, (str, os.PathLike)):
        fields["graph"] = os.fsdecode(graph)
        return None
    return None if graph is None else opened(graph)


# Functions that a user passes to `ps.train`: those that a job can name, and those that exist only as objects.

Functions = str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
"""A function or its location, or several."""


def split_functions(
    loss: str | Callable[..., Any] | None, metrics: Functions, callbacks: Functions
) -> tuple[GivenFunctions, dict[str, Any]]:
    """The function objects, and the job fields of those that were given by location."""
    measures, called = _listed(metrics), _listed(callbacks)
    given = GivenFunctions(
        None if isinstance(loss, str) else loss,
        None if measures is None else tuple(each for each in measures if not isinstance(each, str)),
        None if called is None else tuple(each for each in called if not isinstance(each, str)),
    )
    named = {
        "loss": loss if isinstance(loss, str) else None,
        "metrics": [each for each in measures or () if isinstance(each, str)],
        "callbacks": [each for each in called or () if isinstance(each, str)],
    }
    return given, {name: value for name, value in named.items() if value}


def _listed(functions: Functions) -> list[Any] | None:
    if functions is None:
        return None
    if isinstance(functions, str):
        return [part.strip() for part in functions.split(",")]
    return list(functions) if isinstance(functions, Sequence) else [functions]


# The signature of functions that take the fields of a job: every field by name, with its type and default.

Function = TypeVar("Function", bound=Callable[..., Any])


def with_job_fields(function: Function) -> Function:
    """The function, with the fields of a job in place of `**fields` in its signature and its docstring."""
    own = inspect.signature(function)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    fields = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(), annotation=field.annotation
        )
        for name, field in JobFields.model_fields.items()
        if name not in own.parameters
    ]
    described: Any = function
    described.__signature__ = own.replace(parameters=[*named, *fields])
    described.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_described_fields()}"
    return function


def _described_fields() -> str:
    """Every field with its description, grouped by subject."""
    lines = []
    for title, part in PARTS.items():
        lines += ["", f"{title}:"]
        for name in part.model_fields:
            field = JobFields.model_fields[name]
            lines += textwrap.wrap(
                f"{name}: {field.description}", 110, initial_indent="    ", subsequent_indent=" " * 8
            )
    return "\n".join(["Fields of a job:", *lines])
