"""The error that is meant for a person: a sentence that says what is wrong, where and what to do, and a stable code."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""
Code = Literal[
    "closed",
    "conflicting-options",
    "damaged-file",
    "device-not-found",
    "diverged",
    "duplicate",
    "external-failure",
    "field-missing",
    "file-exists",
    "file-not-found",
    "graph-not-found",
    "id-out-of-range",
    "in-use",
    "infeasible",
    "interrupted",
    "invalid-document",
    "invalid-value",
    "malformed-message",
    "mismatched-inputs",
    "missing-data",
    "not-available",
    "not-finite",
    "not-installed",
    "not-permitted",
    "option-missing",
    "out-of-memory",
    "peer-lost",
    "shape-mismatch",
    "split-missing",
    "step-conflict",
    "too-large",
    "unexpected-failure",
    "unknown-name",
    "unsupported-combination",
    "unsupported-version",
    "untrusted-code",
    "usage",
    "user-code-failed",
    "value-out-of-range",
    "whole-graph-needed",
    "write-failed",
    "wrong-file",
    "wrong-type",
]
"""What can go wrong, by kind. Programs and tests may rely on codes; docs/errors.md says what each means."""
CODES: tuple[str, ...] = get_args(Code)


class PenstockError(Exception):
    """Bad input or an impossible request. `str()` is the whole message, shown without a traceback;
    `code` is its kind.
    """

    def __init__(self, sentence: str, *, code: Code) -> None:
        super().__init__(sentence)
        self.code: Code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Make pickling and copying keep the code, which is no positional argument."""
        return _rebuilt, (type(self), self.args, self.__dict__)


class NotFinite(PenstockError):  # noqa: N818
    """A model's output is NaN: it has diverged, or its inputs were not finite."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="not-finite")


def known_code(text: object) -> Code:
    """A code that another process sent, or "unexpected-failure" where this release does not know it."""
    return cast(Code, text) if text in CODES else "unexpected-failure"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: the known name that was probably meant, or all of them."""
    known = list(known)
    close = nearest_name(name, known)
    return f": did you mean {close!r}?" if close else f": use one of {', '.join(known)}."


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, regardless of case; None where none is similar."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name.lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


def _rebuilt(kind: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
