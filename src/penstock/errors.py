"""The error that is meant for a person: one sentence saying what, where and how to mend it."""

from collections.abc import Iterable
from difflib import get_close_matches


class PenstockError(Exception):
    """Bad input or an impossible request; `str()` is the whole message, shown without a traceback."""


class NotFinite(PenstockError):  # noqa: N818
    """What a model computed is NaN: it has diverged, or its inputs were not finite."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: the known name that was probably meant, or all of them."""
    known = list(known)
    close = get_close_matches(name, known, 1)
    return f": did you mean {close[0]!r}?" if close else f": use one of {', '.join(known)}."
