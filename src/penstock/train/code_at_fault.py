"""Errors of the user's own functions, as sentences."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from penstock.errors import PenstockError


@contextmanager
def code_at_fault(what: str) -> Iterator[None]:
    """What fails in it is a function of the user's: the sentence says which."""
    try:
        yield
    except (PenstockError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise PenstockError(
            f"{what} failed ({type(error).__name__}: {said}): correct it.", code="user-code-failed"
        ) from error
