"""How tests expect an error: by its code and the names in its sentence, not by the sentence's prose."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import CODES, PenstockError


class Refusal(str):
    """An error's sentence, with its code."""

    code: str

    def __new__(cls, sentence: str, code: str) -> "Refusal":
        refusal = super().__new__(cls, sentence)
        refusal.code = code
        return refusal


@contextmanager
def refused(expected: str, kind: type[PenstockError] = PenstockError) -> Iterator[pytest.ExceptionInfo[PenstockError]]:
    """Expect an error; `expected` is its code and words that its sentence must hold: "field-missing x runs/a"."""
    with pytest.raises(kind) as caught:
        yield caught
    check_refusal(caught.value.code, str(caught.value), expected)


def check_refusal(code: str, sentence: str, expected: str) -> None:
    """An error's code and sentence are as expected, see `refused`."""
    wanted, *words = expected.split()
    assert wanted in CODES, f"{wanted!r} is not in penstock.errors.Code"
    assert code == wanted, f"the code is {code!r}, not {wanted!r}: {sentence}"
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
