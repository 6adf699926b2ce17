"""Computations that cannot be traced: they ask for numbers, which traced tensors do not have."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError

_DATA_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
"""What torch raises where a shape or a number depends on data."""


class UntraceableError(Exception):
    """A step asks for numbers, or calls code that knows no tensors without numbers; the message says what failed."""


@contextmanager
def traceable() -> Iterator[None]:
    """What fails in it is an `UntraceableError`, and the run goes on with another prediction.

    A step that asks for numbers is expected to fail, and a refusal says in its sentence what is wrong. Any other error
    is warned of with its place: it may be a mistake of the model, which shows when the step is computed, or one of the
    trace, which nobody would hear of otherwise.
    """
    try:
        yield
    except (UntraceableError, MemoryError):
        raise
    except Exception as error:
        cause = error.__cause__ or error
        what = f"{type(cause).__name__}: {' '.join(str(cause).split())[:160]}"
        if not asks_for_numbers(cause) and not isinstance(cause, PenstockError):
            where = traceback.extract_tb(cause.__traceback__)[-1]
            what = f"{what}, at {where.filename}:{where.lineno}"
            warnings.warn(f"Memory could not be traced, for an unexpected reason ({what}).", RuntimeWarning, 3)
        raise UntraceableError(what) from error


def asks_for_numbers(error: BaseException) -> bool:
    """Whether an error is torch's answer to an operation that needs values of tensors which have none."""
    if isinstance(error, NotImplementedError) or type(error).__name__ in _DATA_DEPENDENT:
        return True
    return isinstance(error, (RuntimeError, TypeError, ValueError)) and "meta" in str(error).lower()
