"""Computations that cannot be traced: they ask for numbers, which traced tensors do not have."""

from collections.abc import Iterator
from contextlib import contextmanager


class UntraceableError(Exception):
    """A step asks for numbers, or calls code that knows no tensors without numbers; the message says what failed."""


@contextmanager
def traceable() -> Iterator[None]:
    """What fails in it is an `UntraceableError`: a mistake that is not the trace's shows when the step is computed."""
    try:
        yield
    except UntraceableError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        raise UntraceableError(f"{type(cause).__name__}: {' '.join(str(cause).split())[:160]}") from error
