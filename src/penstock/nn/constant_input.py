"""Aggregates of inputs that never change: computed once for a block, and read again in every later step.

In training on the whole graph the first layer reads the same rows in every step. What it aggregates of them is the same
each time, unless they are dropped, transformed or learned.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

Made = TypeVar("Made")


class _Constant(NamedTuple):
    kept: dict[Any, Any]
    rows: list[Any]


@contextmanager
def constant_input(kept: dict[Any, Any], rows: Iterable[Any]) -> Iterator[None]:
    """Within it, a block that reads one of `rows` has read the same before; `kept` holds what was made of them."""
    token = _constant.set(_Constant(kept, list(rows)))
    try:
        yield
    finally:
        _constant.reset(token)


def is_constant(x: Any) -> bool:
    """Whether aggregates of x are kept."""
    constant = _constant.get()
    return constant is not None and any(x is rows for rows in constant.rows)


def kept_aggregate(block: Any, what: str, x: Any, make: Callable[[], Made]) -> Made:
    """What `make` gives for a block and rows that never change, made once; made each time for other rows."""
    constant = _constant.get()
    if constant is None or not is_constant(x):
        return make()
    # The block is part of the entry, so that no other one can have its identity.
    found = constant.kept.get((id(block), what))
    if found is None:
        found = constant.kept[id(block), what] = block, make()
    made: Made = found[1]
    return made


def kept_of_rows(x: Any, what: str, make: Callable[[], Made]) -> Made | None:
    """What `make` gives for rows that never change, made once; None for other rows."""
    constant = _constant.get()
    if constant is None or not is_constant(x):
        return None
    found = constant.kept.get((id(x), what))
    if found is None:
        found = constant.kept[id(x), what] = x, make()
    made: Made = found[1]
    return made


_constant: ContextVar[_Constant | None] = ContextVar("_constant", default=None)
