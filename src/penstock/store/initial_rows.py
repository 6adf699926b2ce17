"""What learnable rows begin with: the choices of a job's `embedding_init`, and the draws themselves.

A draw is a hash of the seed, the table's name, the row's number and its column. So a vertex begins with the same row on
one machine, on a device and at any owner of a part.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, key_of, unit
from penstock.kernels import njit

AUTO, XAVIER, IDENTITY = "auto", "xavier", "identity"
GRAMMAR = f"{AUTO}, {XAVIER}, {IDENTITY}, normal:DEVIATION or uniform:BOUND"


class InitialRows(NamedTuple):
    """A distribution around zero: `scale` is the deviation of `normal`, and the bound of `uniform` on both sides."""

    kind: Literal["normal", "uniform"]
    scale: float


def usual_rows(width: int) -> InitialRows:
    """Of rows that layers read: uniform within 1/sqrt(width) of zero."""
    return InitialRows("uniform", 1 / math.sqrt(width))


def chosen_rows(init: str, auto: InitialRows, count: int, width: int) -> InitialRows:
    """What `embedding_init` says of a table of `count` rows; `auto` is what it means by that word."""
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
        raise ValueError(f"{init!r} is not a way to begin rows: write {GRAMMAR}, such as normal:0.1 (up to 100)")
    return InitialRows("normal" if kind == "normal" else "uniform", scale)


def draw_rows(name: str, seed: int, names: Array | None, initial: InitialRows, out: Array) -> None:
    """Fill `out` with the rows that the vertices `names` (None: 0, 1, 2...) of a table begin with."""
    if names is None:
        names = np.arange(len(out))
    if len(names) != len(out):
        raise PenstockError(f"There are {len(names):,} names for {len(out):,} rows of {name!r}.", code="shape-mismatch")
    if out.size:
        kernel = _draw_uniform if initial.kind == "uniform" else _draw_normal
        kernel(key_of(seed, f"embedding/{name}"), names, initial.scale, out)


@njit(nogil=True, cache=True)
def _draw_uniform(key: np.uint64, names: Array, bound: float, out: Array) -> None:
    width = out.shape[1]
    for i in range(len(names)):
        for k in range(width):
            out[i, k] = np.float32((2 * unit(draw(key, np.uint64(names[i] * width + k))) - 1) * bound)


@njit(nogil=True, cache=True)
def _draw_normal(key: np.uint64, names: Array, deviation: float, out: Array) -> None:
    """By the transform of Box and Muller: one half of a draw is the angle, the other, which is never 0, the length."""
    width, half, part = out.shape[1], np.uint64(32), 1.0 / (1 << 32)
    low = np.uint64((1 << 32) - 1)
    for i in range(len(names)):
        for k in range(width):
            bits = draw(key, np.uint64(names[i] * width + k))
            length = np.sqrt(-2.0 * np.log((float(bits >> half) + 0.5) * part))
            out[i, k] = np.float32(deviation * length * np.cos(2.0 * np.pi * part * float(bits & low)))
