"""Functions that a user gives to `ps.train`: those that a job can name, and those that are only objects."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.train.user_functions import GivenFunctions

Functions = str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
"""A function or its location, or several."""


def split_functions(
    loss: str | Callable[..., Any] | None, metrics: Functions, callbacks: Functions
) -> tuple[GivenFunctions, dict[str, Any]]:
    """The objects, and the fields of a job for those that were given by location."""
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
