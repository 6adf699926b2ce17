"""Learnable rows, one a vertex, with a sparse optimiser: a step touches the rows of its batch and no others."""

from typing import Literal

import numpy as np
from numba import njit

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, key_of, unit
from penstock.store.rows import gather_rows

Optimiser = Literal["adam", "adagrad"]
MOMENTS = {"adam": 2, "adagrad": 1}
"""How many numbers an optimiser keeps beside each number it learns."""
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8
_ADAGRAD_EPSILON = 1e-10


class EmbeddingTable:
    """`count` rows of `width` float32, drawn uniformly within 1/sqrt(width) of zero from a hash of (seed, name, row).

    `names` are the rows' numbers in that hash, where they are not 0, 1, 2...: in a cut graph the original ones, so that
    a vertex begins with the same row however the graph is cut.

    `push` takes gradients of different rows and applies one step: Adam with moments kept per row and the bias
    correction of the table's own step count (torch's SparseAdam), or Adagrad.
    """

    def __init__(
        self,
        name: str,
        count: int,
        width: int,
        optimiser: Optimiser,
        rate: float,
        seed: int,
        names: Array | None = None,
    ) -> None:
        check_optimiser(optimiser)
        self.name, self.optimiser, self.rate, self.steps = name, optimiser, rate, 0
        self.rows: Array = np.empty((count, width), np.float32)
        draw_rows(name, seed, names, self.rows)
        self.moments = [np.zeros_like(self.rows) for _ in range(MOMENTS[optimiser])]

    @property
    def size(self) -> int:
        """Learnable numbers."""
        return self.rows.size

    def pull(self, ids: Array, out: Array | None = None) -> Array:
        """A copy of some rows."""
        return gather_rows(self.rows, ids, out)

    def push(self, ids: Array, gradients: Array) -> None:
        """One optimiser step on the rows `ids`, all different."""
        if gradients.shape != (len(ids), self.rows.shape[1]):
            raise PenstockError(f"Gradients of shape {gradients.shape} do not fit {len(ids)} rows of {self.name!r}.")
        self.steps += 1
        learn_rows(self.optimiser, self.rate, self.steps, [self.rows, *self.moments], ids, gradients)

    def state(self) -> dict[str, Array | int]:
        """Everything a checkpoint must hold, not copied."""
        return {"steps": self.steps, "rows": self.rows, **{f"moment{i}": m for i, m in enumerate(self.moments)}}

    def restore(self, state: dict[str, Array | int]) -> None:
        """Take the place of a stored state."""
        for own, stored in zip([self.rows, *self.moments], self._stored(state), strict=True):
            if not isinstance(stored, np.ndarray) or stored.shape != own.shape:
                raise PenstockError(
                    f"The checkpoint's embeddings of {self.name!r} are of another shape than the graph's."
                )
            own[...] = stored
        self.steps = int(state["steps"])

    def _stored(self, state: dict[str, Array | int]) -> list[Array | int]:
        names = ["rows", *(f"moment{i}" for i in range(len(self.moments)))]
        if missing := {"steps", *names} - set(state):
            raise PenstockError(f"The checkpoint lacks {sorted(missing)} of the embeddings of {self.name!r}.")
        return [state[name] for name in names]


def check_optimiser(optimiser: str) -> None:
    """Refuse one that embeddings are not trained with."""
    if optimiser not in MOMENTS:
        raise PenstockError(f"Embeddings cannot be trained with {optimiser!r}: choose adam or adagrad.")


def draw_rows(name: str, seed: int, names: Array | None, out: Array) -> None:
    """Fill `out` with the rows that the vertices `names` (None: 0, 1, 2...) of a table begin with."""
    if names is None:
        names = np.arange(len(out))
    if len(names) != len(out):
        raise PenstockError(f"There are {len(names):,} names for {len(out):,} rows of {name!r}.")
    if out.size:
        _draw(key_of(seed, f"embedding/{name}"), names, 1 / np.sqrt(out.shape[1]), out)


def learn_rows(optimiser: Optimiser, rate: float, steps: int, table: list[Array], ids: Array, gradients: Array) -> None:
    """The `steps`-th optimiser step of a table (rows, then moments) on the rows `ids`, all different."""
    gradients = np.ascontiguousarray(gradients, np.float32)
    if optimiser == "adam":
        correction = np.sqrt(1 - _BETA_2**steps) / (1 - _BETA_1**steps)
        _adam(table[0], table[1], table[2], ids, gradients, np.float32(rate * correction))
    else:
        _adagrad(table[0], table[1], ids, gradients, np.float32(rate))


@njit(nogil=True, cache=True)
def _draw(key: np.uint64, names: Array, bound: float, out: Array) -> None:
    width = out.shape[1]
    for i in range(len(names)):
        for k in range(width):
            out[i, k] = np.float32((2 * unit(draw(key, np.uint64(names[i] * width + k))) - 1) * bound)


@njit(nogil=True, cache=True)
def _adam(rows: Array, first: Array, second: Array, ids: Array, gradients: Array, rate: np.float32) -> None:
    b1, b2, eps = np.float32(_BETA_1), np.float32(_BETA_2), np.float32(_EPSILON)
    one = np.float32(1)
    for i in range(len(ids)):
        row = ids[i]
        for k in range(rows.shape[1]):
            g = gradients[i, k]
            first[row, k] += (one - b1) * (g - first[row, k])
            second[row, k] += (one - b2) * (g * g - second[row, k])
            rows[row, k] -= rate * first[row, k] / (np.sqrt(second[row, k]) + eps)


@njit(nogil=True, cache=True)
def _adagrad(rows: Array, total: Array, ids: Array, gradients: Array, rate: np.float32) -> None:
    eps = np.float32(_ADAGRAD_EPSILON)
    for i in range(len(ids)):
        row = ids[i]
        for k in range(rows.shape[1]):
            g = gradients[i, k]
            total[row, k] += g * g
            rows[row, k] -= rate * g / (np.sqrt(total[row, k]) + eps)
