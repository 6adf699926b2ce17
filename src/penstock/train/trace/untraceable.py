"""Computations that cannot be traced: they ask for numbers, which traced tensors do not have."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


class UntraceableError(Exception):
    """A step asks for numbers, or calls code that knows no tensors without numbers; the message says what failed."""


@contextmanager
def traceable() -> Iterator[None]:
    """What fails in it because tensors have no numbers is an `UntraceableError`."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        raise UntraceableError(_said(error)) from error
    except PenstockError as error:
        if error.code != "user-code-failed":
            raise
        raise UntraceableError(_said(error.__cause__ or error)) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
