"""Initial values of learnable rows: the choices of a job's `embedding_init`, drawn by `embedding.draw_rows`."""

import math
from typing import Literal, NamedTuple

AUTO, XAVIER, IDENTITY = "auto", "xavier", "identity"
GRAMMAR = f"{AUTO}, {XAVIER}, {IDENTITY}, normal:DEVIATION or uniform:BOUND"


class InitialRows(NamedTuple):
    """A distribution around zero: `scale` is the deviation of `normal`, and the bound of `uniform` on both sides."""

    kind: Literal["normal", "uniform"]
    scale: float


def usual_rows(width: int) -> InitialRows:
    """For rows that layers read: uniform within 1/sqrt(width) of zero."""
    return InitialRows("uniform", 1 / math.sqrt(width))


def product_rows() -> InitialRows:
    """Of rows whose products are scores: N(0, 0.1)."""
    return InitialRows("normal", 0.1)


def distance_rows(margin: float, numbers: int) -> InitialRows:
    """Of rows that are scored by distances: two random ones are about `margin` apart (Sun et al., 2019).

    `numbers` are those that a distance goes through.
    """
    return InitialRows("uniform", (margin + 2) / numbers)


def unit_rows(width: int) -> InitialRows:
    """Of rows that are measured by the root of squares: about as long as 1 (Bordes et al., 2013)."""
    return InitialRows("uniform", (3 / width) ** 0.5)


def chosen_rows(init: str, auto: InitialRows, count: int, width: int) -> InitialRows:
    """The distribution that `embedding_init` names, for a table of `count` rows; `auto` is the one for that word."""
    if init == AUTO:
        return auto
    if init == XAVIER:
        return InitialRows("uniform", math.sqrt(6 / (count + width)))
    return usual_rows(width) if init == IDENTITY else _given(init)


def checked_init(init: str) -> str:
    """Raise ValueError unless `embedding_init` is one of the choices."""
    if init not in (AUTO, XAVIER, IDENTITY):
        _given(init)
    return init


def _given(init: str) -> InitialRows:
    kind, _, number = init.partition(":")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if kind not in ("normal", "uniform") or not 0 < scale <= 100:
        raise ValueError(f"{init!r} is not a way to initialise rows: write {GRAMMAR}, such as normal:0.1 (up to 100)")
    return InitialRows("normal" if kind == "normal" else "uniform", scale)
