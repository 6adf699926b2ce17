"""The signature of functions that take the fields of a job: every field by its name, with its type and default."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.train.job import PARTS, Job

Function = TypeVar("Function", bound=Callable[..., Any])


def with_job_fields(function: Function) -> Function:
    """The same function, whose `**fields` are shown as the fields of a job, in its signature and its docstring."""
    own = inspect.signature(function)
    named = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    fields = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(), annotation=field.annotation
        )
        for name, field in Job.model_fields.items()
        if name not in own.parameters
    ]
    described: Any = function
    described.__signature__ = own.replace(parameters=[*named, *fields])
    described.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_listed()}"
    return function


def _listed() -> str:
    """Every field with its description, by subject."""
    lines = []
    for title, part in PARTS.items():
        lines += ["", f"{title}:"]
        for name in part.model_fields:
            field = Job.model_fields[name]
            lines += textwrap.wrap(
                f"{name}: {field.description}", 110, initial_indent="    ", subsequent_indent=" " * 8
            )
    return "\n".join(["Fields of a job:", *lines])
