"""Checked ids of any converter: integers or strings, none of them twice."""

from collections.abc import Sequence

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.ids import Ids, StringIds


def array_ids(values: Array, where: str) -> Ids:
    """Ids from an array of integers (int64 then) or of strings. `where` names it in sentences."""
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise PenstockError(
            f"{where} is {values.dtype} of shape {values.shape}, not a list of integers or strings: convert the ids.",
            code="wrong-type",
        )
    if values.dtype.kind == "U":
        return string_ids(values.tolist(), where)
    if values.dtype.kind == "u" and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise PenstockError(
            f"{where} holds {int(values.max())}, which does not fit int64: give the ids as strings.",
            code="value-out-of-range",
        )
    found, counts = np.unique(values, return_counts=True)
    if len(found) < len(values):
        raise PenstockError(
            f"{where} holds {int(found[np.argmax(counts > 1)])} twice: give every vertex its own id.", code="duplicate"
        )
    return values.astype(np.int64, copy=False)


def string_ids(strings: Sequence[str], where: str) -> StringIds:
    """Ids from strings that differ and can be written as UTF-8."""
    seen = set[str]()
    for text in strings:
        if text in seen:
            raise PenstockError(f"{where} holds {text!r} twice: give every vertex its own id.", code="duplicate")
        seen.add(text)
    try:
        return StringIds.of(strings)
    except UnicodeEncodeError as error:
        raise PenstockError(
            f"{where} holds the id {error.object!r}, which is not valid Unicode: rename it.", code="invalid-value"
        ) from None
