"""Learnable rows, one per vertex, with an optimiser whose steps touch only the rows of a batch.

With `dense-adam`, and with a decay, every row changes in every step, as under torch's Adam: a row that a batch does not
read has the gradient zero, or decay * row. Those steps are caught up when the row is next read, one after the other, so
that the results are the same as if they had been done at once.
"""

import threading
from functools import cache
from typing import Literal, cast

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, key_of, unit
from penstock.kernels import njit
from penstock.store.initial_rows import InitialRows, usual_rows
from penstock.store.rows import gather_rows

Optimiser = Literal["adam", "dense-adam", "adagrad"]
MOMENTS = {"adam": 2, "dense-adam": 2, "adagrad": 1}
"""The number of moments that an optimiser keeps for each value."""
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
ADAGRAD_EPSILON = 1e-10
_AT_REST = 1e-9
"""A row that is not read stops changing when its next step would be shorter than this share of the rate."""
_STEPS_BETWEEN_READS = 256
"""The largest number of vertices per seed of a batch for which `auto` is `dense-adam`: beyond it, catching up takes
longer than everything else.
"""


class EmbeddingTable:
    """`count` rows of `width` float32, drawn as `initial` says; by default uniform within 1/sqrt(width) of zero.

    `names` are the rows' numbers in the draws, if not 0, 1, 2...: in a partitioned graph the original ones, so that a
    vertex has the same initial row however the graph is partitioned.

    `push` takes gradients of different rows and applies one step: Adam with moments kept per row and the bias
    correction of the table's own step count (`adam`, which is torch's SparseAdam), or Adagrad. With `dense-adam` all
    rows take part in every step, as in torch's Adam; with a `decay` too, as with `weight_decay` there.
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
        decay: float = 0.0,
        initial: InitialRows | None = None,
    ) -> None:
        check_optimiser(optimiser)
        self.decay, self._lock = decay, threading.Lock()
        self.name, self.optimiser, self.rate, self.steps = name, optimiser, rate, 0
        self.rows: Array = np.empty((count, width), np.float32)
        draw_rows(name, seed, names, initial or usual_rows(width), self.rows)
        self.moments = [np.zeros_like(self.rows) for _ in range(MOMENTS[optimiser])]
        self._last = [np.zeros((count, 1), np.int32)] if moves_every_row(optimiser, decay) else []
        """Where every step changes every row, the step that each row is up to date with."""

    @property
    def size(self) -> int:
        """The number of learnable values."""
        return self.rows.size

    def pull(self, ids: Array, out: Array | None = None) -> Array:
        """A copy of some rows. Any thread may call it."""
        self._catch_up(ids)
        return gather_rows(self.rows, ids, out)

    def push(self, ids: Array, gradients: Array) -> None:
        """One optimiser step on the rows `ids`, all different."""
        if gradients.shape != (len(ids), self.rows.shape[1]):
            raise PenstockError(
                f"Gradients of shape {gradients.shape} do not fit {len(ids)} rows of {self.name!r}.",
                code="shape-mismatch",
            )
        self.steps += 1
        table = [self.rows, *self.moments, *self._last]
        learn_rows(self.optimiser, self.rate, self.steps, table, ids, gradients, self.decay)

    def state(self) -> dict[str, Array | int]:
        """Everything a checkpoint must hold, not copied: all rows as of the last step."""
        self._catch_up(np.arange(len(self.rows)))
        return {"steps": self.steps, "rows": self.rows, **{f"moment{i}": m for i, m in enumerate(self.moments)}}

    def restore(self, state: dict[str, Array | int]) -> None:
        """Load the rows, moments and step count of a stored state."""
        found = stored_arrays(self.name, state, len(self.moments), self.rows.shape)
        for own, stored in zip([self.rows, *self.moments], found, strict=True):
            own[...] = stored
        self.steps = int(state["steps"])
        for last in self._last:
            last.fill(self.steps)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps; pending steps of unread rows are done at the old one first."""
        if rate != self.rate:
            self._catch_up(np.arange(len(self.rows)))
            self.rate = rate

    def _catch_up(self, ids: Array) -> None:
        """Do the pending steps of some rows."""
        if self._last:
            with self._lock:
                table = [self.rows, *self.moments, *self._last]
                catch_up(self.optimiser, self.rate, self.steps, table, ids, self.decay)


def stored_arrays(name: str, state: dict[str, Array | int], moments: int, shape: tuple[int, ...]) -> list[Array]:
    """Rows and moments of a checkpoint, validated to be those of a table of that shape."""
    names = ["rows", *(f"moment{i}" for i in range(moments))]
    if missing := {"steps", *names} - set(state):
        raise PenstockError(
            f"The checkpoint lacks {sorted(missing)} of the embeddings of {name!r}: use another checkpoint.",
            code="mismatched-inputs",
        )
    found = [state[each] for each in names]
    if not all(isinstance(each, np.ndarray) and each.shape == shape for each in found):
        raise PenstockError(
            f"The checkpoint's embeddings of {name!r} do not have the shape that the graph needs: use a checkpoint of"
            " this run.",
            code="mismatched-inputs",
        )
    return [each for each in found if isinstance(each, np.ndarray)]


def check_optimiser(optimiser: str) -> None:
    """Refuse an optimiser that embeddings do not support."""
    if optimiser not in MOMENTS:
        raise PenstockError(
            f"Embeddings cannot be trained with {optimiser!r}: choose adam, dense-adam or adagrad.", code="unknown-name"
        )


def draw_rows(name: str, seed: int, names: Array | None, initial: InitialRows, out: Array) -> None:
    """Fill `out` with the initial rows of the vertices `names` (None: 0, 1, 2...).

    A draw is a hash of the seed, the table's name, the row's number and its column. So a vertex has the same initial
    row on one machine, on a device and at any owner of a part.
    """
    if names is None:
        names = np.arange(len(out))
    if len(names) != len(out):
        raise PenstockError(f"There are {len(names):,} names for {len(out):,} rows of {name!r}.", code="shape-mismatch")
    if out.size:
        kernel = _draw_uniform if initial.kind == "uniform" else _draw_normal
        kernel(key_of(seed, "embedding/{}", name), names, initial.scale, out)


@njit(nogil=True, cache=True, writes=("out",))
def _draw_uniform(key: np.uint64, names: Array, bound: float, out: Array) -> None:
    width = out.shape[1]
    for i in range(len(names)):
        for k in range(width):
            out[i, k] = np.float32((2 * unit(draw(key, np.uint64(names[i] * width + k))) - 1) * bound)


@njit(nogil=True, cache=True, writes=("out",))
def _draw_normal(key: np.uint64, names: Array, deviation: float, out: Array) -> None:
    """The Box-Muller transform: one half of a draw is the angle, the other, which is never 0, the length."""
    width, half, part = out.shape[1], np.uint64(32), 1.0 / (1 << 32)
    low = np.uint64((1 << 32) - 1)
    for i in range(len(names)):
        for k in range(width):
            bits = draw(key, np.uint64(names[i] * width + k))
            length = np.sqrt(-2.0 * np.log((float(bits >> half) + 0.5) * part))
            out[i, k] = np.float32(deviation * length * np.cos(2.0 * np.pi * part * float(bits & low)))


def row_optimiser(asked: str, reads_layers: bool, count: int, batch_size: int) -> Optimiser:
    """The optimiser of a table of `count` rows: the one that a job names, or what `auto` means.

    That is `adam` for rows that layers read, and for tables so large that a batch reads a small part of them; else
    `dense-adam`.
    """
    if asked != "auto":
        check_optimiser(asked)
        return cast(Optimiser, asked)
    return "adam" if reads_layers or count > _STEPS_BETWEEN_READS * batch_size else "dense-adam"


def moves_every_row(optimiser: Optimiser, decay: float) -> bool:
    """Whether a step also changes rows that its batch has not read."""
    return optimiser == "dense-adam" or decay > 0


def learn_rows(
    optimiser: Optimiser,
    rate: float,
    steps: int,
    table: list[Array],
    ids: Array,
    gradients: Array,
    decay: float = 0.0,
) -> None:
    """The `steps`-th optimiser step of a table (rows, then moments) on the rows `ids`, all different.

    Where every step changes every row, the table ends with the step ([rows, 1], int32) that each is up to date with.
    """
    gradients = np.ascontiguousarray(gradients, np.float32)
    if moves_every_row(optimiser, decay):
        catch_up(optimiser, rate, steps - 1, table, ids, decay)
        table[-1][ids] = steps
    if decay:
        gradients = gradients + np.float32(decay) * table[0][ids]
    if optimiser != "adagrad":
        _adam(table[0], table[1], table[2], ids, gradients, np.float32(rate * correction(steps)))
    else:
        _adagrad(table[0], table[1], ids, gradients, np.float32(rate))


def catch_up(optimiser: Optimiser, rate: float, steps: int, table: list[Array], ids: Array, decay: float) -> None:
    """Bring the rows `ids` of a table up to date with its `steps`-th step: they were not read since."""
    last = table[-1]
    if not len(ids) or (first := int(last[ids].min())) >= steps:
        return
    if optimiser == "adagrad":
        _adagrad_alone(table[0], table[1], last, ids, np.float32(decay), np.float32(rate), steps)
        return
    rates = (rate * _corrections(1 << steps.bit_length())[first:steps]).astype(np.float32)
    if decay:
        _adam_alone(table[0], table[1], table[2], last, ids, np.float32(decay), rates, steps)
    else:
        _adam_coasting(table[0], table[1], table[2], last, ids, rates, steps)


@cache
def correction(steps: int) -> float:
    """Adam's bias correction of both moments together."""
    return float(np.sqrt(1 - BETA_2**steps) / (1 - BETA_1**steps))


@cache
def _corrections(steps: int) -> Array:
    """The corrections of the first `steps` steps, a power of two, so that few arrays are ever made."""
    return np.array([correction(step) for step in range(1, steps + 1)])


@njit(nogil=True, cache=True)
def _adam(rows: Array, first: Array, second: Array, ids: Array, gradients: Array, rate: np.float32) -> None:
    b1, b2, eps = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
    one = np.float32(1)
    for i in range(len(ids)):
        row = ids[i]
        for k in range(rows.shape[1]):
            g = gradients[i, k]
            first[row, k] += (one - b1) * (g - first[row, k])
            second[row, k] += (one - b2) * (g * g - second[row, k])
            rows[row, k] -= rate * first[row, k] / (np.sqrt(second[row, k]) + eps)


@njit(nogil=True, cache=True)
def _adam_alone(
    rows: Array, first: Array, second: Array, last: Array, ids: Array, decay: np.float32, rates: Array, steps: int
) -> None:
    """`_adam` with the gradient of the penalty only, for every step after a row's last; rates[-1] is the last's."""
    b1, b2, eps = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
    one = np.float32(1)
    for i in range(len(ids)):
        row = ids[i]
        for step in range(last[row, 0] + 1, steps + 1):
            rate = rates[len(rates) - 1 - (steps - step)]
            for k in range(rows.shape[1]):
                g = decay * rows[row, k]
                first[row, k] += (one - b1) * (g - first[row, k])
                second[row, k] += (one - b2) * (g * g - second[row, k])
                rows[row, k] -= rate * first[row, k] / (np.sqrt(second[row, k]) + eps)
        last[row, 0] = max(last[row, 0], steps)


@njit(nogil=True, cache=True)
def _adam_coasting(rows: Array, first: Array, second: Array, last: Array, ids: Array, rates: Array, steps: int) -> None:
    """`_adam` with zero gradients, for every step after a row's last; rates[-1] is the last's.

    The first moment shrinks faster than the root of the second. Once it is too small to change a value it is set to
    zero, after about 200 steps, and from then on only the second moment shrinks.
    """
    b1, b2, eps, rest = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON), np.float32(_AT_REST)
    zero, one = np.float32(0), np.float32(1)
    for i in range(len(ids)):
        row = ids[i]
        begun, moves = last[row, 0], True
        for step in range(begun + 1, steps + 1):
            if moves:
                rate, moves = rates[len(rates) - 1 - (steps - step)], False
                for k in range(rows.shape[1]):
                    second[row, k] += (one - b2) * (zero - second[row, k])
                    root = np.sqrt(second[row, k]) + eps
                    mean = first[row, k] + (one - b1) * (zero - first[row, k])
                    mean = zero if abs(mean) < rest * root else mean
                    moves = moves or mean != zero
                    first[row, k] = mean
                    rows[row, k] -= rate * mean / root
            else:
                for k in range(rows.shape[1]):
                    second[row, k] += (one - b2) * (zero - second[row, k])
        last[row, 0] = max(last[row, 0], steps)


@njit(nogil=True, cache=True)
def _adagrad_alone(
    rows: Array, total: Array, last: Array, ids: Array, decay: np.float32, rate: np.float32, steps: int
) -> None:
    """`_adagrad` with the gradient of the penalty only, for every step after a row's last."""
    eps = np.float32(ADAGRAD_EPSILON)
    for i in range(len(ids)):
        row = ids[i]
        for _ in range(last[row, 0], steps):
            for k in range(rows.shape[1]):
                g = decay * rows[row, k]
                total[row, k] += g * g
                rows[row, k] -= rate * g / (np.sqrt(total[row, k]) + eps)
        last[row, 0] = max(last[row, 0], steps)


@njit(nogil=True, cache=True)
def _adagrad(rows: Array, total: Array, ids: Array, gradients: Array, rate: np.float32) -> None:
    eps = np.float32(ADAGRAD_EPSILON)
    for i in range(len(ids)):
        row = ids[i]
        for k in range(rows.shape[1]):
            g = gradients[i, k]
            total[row, k] += g * g
            rows[row, k] -= rate * g / (np.sqrt(total[row, k]) + eps)
