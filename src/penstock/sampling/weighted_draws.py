"""Draws in proportion to edge weights from one list, with the weights of estimators.

Without replacement the k drawn edges are those of the least ranks, and an edge of weight w counts as w / p, where p is
the chance that its rank is below the (k + 1)-th: the sum over the drawn is exactly unbiased for the sum over the list.
There are two kinds of ranks:

- u / w with u uniform in (0, 1] (priority sampling; Duffield, Lund and Thorup): w / p is the larger of w and 1 / rank.
  All ranks are computed, in one pass over the list.
- exponentially distributed with rate w (Cohen): the least rank of a list is exponential with the sum of its weights,
  and belongs to each edge in proportion to its weight. So edges are drawn one after the other by searching running
  sums, without those drawn before, and no pass over the list is needed. p = 1 - exp(-w * rank).

The second is used for lists longer than `SUMMED` fan-outs of which every edge may be drawn.

Masses are weights in whole numbers, about 2^50 for a whole list, so that sums do not depend on their order and
other devices draw the same. `SPACING` list positions share one running sum.
"""

import math
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.hashing import mix, share_of, unit
from penstock.kernels import njit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_S11 = np.uint64(11)
_TO_UNIT = 1.0 / (1 << 53)
SUMMED = 16
"""Lists longer than this many fan-outs are drawn from by running sums."""
SPACING = 16
"""Positions between two running sums."""
FEW = 32
"""Up to this fan-out running sums are used: a draw looks through those made before it."""
ROOT = 0.7071067811865476
LOG_2 = 0.6931471805599453
ODD = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11, 1 / 13)
PARTS = (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720)
"""Constants of series, which devices share."""
MASS_BITS = 51
"""The mass of a list is below 2 to this power, but for edges whose mass is rounded up to 1."""


class Scratch(NamedTuple):
    """Memory for the draws of one list after the other."""

    heap: Array
    items: Array
    masses: Array


@njit(nogil=True, cache=True)
def scratch_for(fanout: int) -> Scratch:
    """Memory for draws of `fanout` edges."""
    size = max(fanout, FEW) + 1
    return Scratch(np.empty(size, np.float64), np.empty(size, np.int64), np.empty(FEW, np.int64))


def weights_of(edges: EdgeSet, field: str, where: str) -> tuple[Array, Array]:
    """The weights of the edges and the sum of each list's, validated: one finite, non-negative number per edge."""
    if field not in edges.fields:
        has = ", ".join(edges.fields) or "none"
        raise PenstockError(
            f"The edges of {where} have no field {field!r} to use as weights (fields: {has}).", code="field-missing"
        )
    weights = edges.fields[field]
    if weights.ndim != 1 or weights.dtype.kind not in "iuf":
        raise PenstockError(
            f"Field {field!r} of {where} cannot be used as weights: it must hold one number for each edge.",
            code="wrong-type",
        )
    sums = np.empty(len(edges.indptr) - 1, np.float32)
    bad = _sum_lists(edges.indptr, weights, sums)
    if bad >= 0:
        # Checked for trusted graphs as well: a draw by NaN or negative weights is meaningless.
        wrong = int(np.count_nonzero(~((weights >= 0) & (weights < np.inf))))
        raise PenstockError(
            f"Field {field!r} of {where} has {wrong:,} weights that are NaN, infinite or negative, first {weights[bad]}"
            f" at edge {bad}: weights must be finite and not negative; 0 leaves an edge out.",
            code="not-finite",
        )
    if not np.isfinite(sums).all():
        raise PenstockError(
            f"The weights {field!r} of {where} add up beyond float32: divide them by a constant.",
            code="value-out-of-range",
        )
    return weights, sums


@njit(nogil=True, cache=True, writes=("sums",))
def _sum_lists(indptr: Array, weights: Array, sums: Array) -> int:
    """Sum every list's weights; returns the position of an invalid weight, or -1."""
    for v in range(len(sums)):
        total = 0.0
        for k in range(indptr[v], indptr[v + 1]):
            if not (weights[k] >= 0 and weights[k] < np.inf):
                return k
            total += weights[k]
        sums[v] = total
    return -1


def running_masses(indptr: Array, weights: Array, sums: Array) -> Array:
    """For every `SPACING`-th position, the mass of the edges before it in the list that it is in."""
    running = np.zeros(len(weights) // SPACING + 1, np.int64)
    _run_masses(indptr, weights, sums, running)
    return running


@njit(nogil=True, cache=True, writes=("running",))
def _run_masses(indptr: Array, weights: Array, sums: Array, running: Array) -> None:
    for v in range(len(sums)):
        scale, before = mass_scale(sums[v]), 0
        for position in range(indptr[v], indptr[v + 1]):
            if position % SPACING == 0:
                running[position // SPACING] = before
            before += mass(weights[position], scale)


@njit(nogil=True, cache=True)
def mass_scale(total: float) -> float:
    """The power of two by which weights become masses, by the sum of the list's weights."""
    return math.ldexp(1.0, MASS_BITS - math.frexp(total)[1])


@njit(nogil=True, cache=True, inline="always")
def mass(weight: float, scale: float) -> int:
    """A weight in whole numbers: 1 at least, unless it is 0."""
    whole = int(weight * scale)
    return max(whole, 1) if weight > 0 else 0


@njit(nogil=True, cache=True)
def choose_weighted(
    key: np.uint64,
    start: int,
    weights: Array,
    total: float,
    candidates: Array,
    count: int,
    fanout: int,
    replace: bool,
    positions: Array,
    out_weights: Array,
    used: int,
    scratch: Scratch,
) -> int:
    """Write `fanout` of the first `count` candidates after the first `used` positions, in the order of the list where
    they are different; returns how many.

    Candidates have positive weights and draw by their position in the list, which starts at `start` and whose weights
    sum to `total`. Estimator weights go to `out_weights`, unless drawn with replacement.
    """
    if count == 0:
        return 0
    if fanout < 0 or (count <= fanout and not replace):
        for k in range(count):
            positions[used + k] = candidates[k]
            out_weights[used + k] = float(weights[candidates[k]])
        return count
    if replace:
        _choose_with_repeats(key, weights, mass_scale(total), candidates, count, positions[used : used + fanout])
        return fanout
    choose_by_priority(key, start, weights, candidates, count, fanout, positions, out_weights, used, scratch)
    return fanout


@njit(nogil=True, cache=True)
def _choose_with_repeats(
    key: np.uint64, weights: Array, scale: float, candidates: Array, count: int, positions: Array
) -> None:
    sums = np.empty(count, np.int64)
    total = 0
    for k in range(count):
        total += mass(weights[candidates[k]], scale)
        sums[k] = total
    for j in range(len(positions)):
        wanted = np.int64(share_of(mix(key + np.uint64(j + 1) * _STEP), np.uint64(total)))
        low, high = 0, count - 1
        while low < high:
            middle = (low + high) // 2
            if sums[middle] > wanted:
                high = middle
            else:
                low = middle + 1
        positions[j] = candidates[low]


@njit(nogil=True, cache=True)
def choose_by_priority(
    key: np.uint64,
    start: int,
    weights: Array,
    candidates: Array,
    count: int,
    fanout: int,
    positions: Array,
    out_weights: Array,
    used: int,
    scratch: Scratch,
) -> bool:
    """The k largest priorities, one over their ranks; the heap holds one more, whose root is the threshold.

    Without candidates the first `count` entries of the list are meant; whether enough of them have a weight.
    """
    size, heap, items, listed = fanout + 1, scratch.heap, scratch.items, len(candidates) > 0
    heap[:size] = 0.0
    for k in range(count):
        position = candidates[k] if listed else start + k
        weight, lot = weights[position], 1.0 - unit(mix(key + np.uint64(position - start + 1) * _STEP))
        if weight <= heap[0] * lot:
            continue
        hole, priority = 0, weight / lot
        while True:
            child = 2 * hole + 1
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if child >= size or heap[child] >= priority:
                break
            heap[hole], items[hole] = heap[child], items[child]
            hole = child
        heap[hole], items[hole] = priority, position
    if heap[0] == 0.0:
        return False
    # Shell's sort: NumPy's would take as long to be compiled as all that is here.
    gap = 1
    while FEW * gap < size - 1:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(1 + gap, size):
            position, place = items[k], k
            while place > gap and items[place - gap] > position:
                items[place] = items[place - gap]
                place -= gap
            items[place] = position
        gap //= 3
    for k in range(fanout):
        positions[used + k] = items[k + 1]
        out_weights[used + k] = max(float(weights[items[k + 1]]), heap[0])
    return True


@njit(nogil=True, cache=True)
def choose_by_sums(
    key: np.uint64,
    first: int,
    last: int,
    weights: Array,
    total: float,
    running: Array,
    fanout: int,
    replace: bool,
    positions: Array,
    out_weights: Array,
    used: int,
    scratch: Scratch,
) -> int:
    """`choose_weighted` from a whole list, [first, last), by running masses; `fanout` is `FEW` at most."""
    scale = mass_scale(total)
    behind = (last - 1) // SPACING * SPACING
    left = running[behind // SPACING] if behind > first else 0
    for position in range(max(first, behind), last):
        left += mass(weights[position], scale)
    if replace:
        for j in range(fanout if left > 0 else 0):
            sought = np.int64(share_of(mix(key + np.uint64(j + 1) * _STEP), np.uint64(left)))
            positions[used + j] = _find_mass(sought, first, last, weights, scale, running)[0]
        return fanout if left > 0 else 0
    below, masses = scratch.items, scratch.masses
    rank, taken = 0.0, 0
    while left > 0:
        rank += exponential(mix(key + np.uint64(2 * taken + 1) * _STEP)) / float(left)
        if taken == fanout:
            break
        sought = np.int64(share_of(mix(key + np.uint64(2 * taken + 2) * _STEP), np.uint64(left)))
        place = 0
        while place < taken and below[place] <= sought:
            sought += masses[place]
            place += 1
        position, before = _find_mass(sought, first, last, weights, scale, running)
        for k in range(taken, place, -1):
            positions[used + k], below[k], masses[k] = positions[used + k - 1], below[k - 1], masses[k - 1]
        positions[used + place], below[place], masses[place] = position, before, mass(weights[position], scale)
        left -= masses[place]
        taken += 1
    for k in range(taken):
        weight = float(weights[positions[used + k]])
        out_weights[used + k] = weight / chance_below(float(masses[k]) * rank) if left > 0 else weight
    return taken


@njit(nogil=True, cache=True)
def _find_mass(
    sought: np.int64, first: int, last: int, weights: Array, scale: float, running: Array
) -> tuple[int, int]:
    """The position of the edge at which the list's running mass exceeds a number, and the mass before it."""
    low, high = first // SPACING, (last - 1) // SPACING
    while low < high:
        middle = (low + high + 1) // 2
        if running[middle] <= sought:
            low = middle
        else:
            high = middle - 1
    position, before = low * SPACING, running[low]
    if position <= first:
        position, before = first, 0
    while position < last - 1:
        here = mass(weights[position], scale)
        if before + here > sought:
            break
        before += here
        position += 1
    return position, before


@njit(nogil=True, cache=True)
def exponential(bits: np.uint64) -> float:
    """64 random bits as a number of the exponential distribution with mean 1: minus the logarithm of a uniform one.

    Only operations that every device rounds alike: halvings, and the series of 2 * atanh((1 - u) / (1 + u)).
    """
    u, halvings = float((bits >> _S11) + np.uint64(1)) * _TO_UNIT, 0.0
    while u <= ROOT:
        u *= 2.0
        halvings += 1.0
    s = (1.0 - u) / (1.0 + u)
    z = s * s
    series = z * (ODD[0] + z * (ODD[1] + z * (ODD[2] + z * (ODD[3] + z * (ODD[4] + z * ODD[5])))))
    return halvings * LOG_2 + 2.0 * (s + s * series)


@njit(nogil=True, cache=True)
def chance_below(x: float) -> float:
    """1 - exp(-x), by the series at x / 64 and six doublings, which every device rounds alike."""
    y = min(x, 40.0) * 0.015625
    chance = y * (1.0 - y * (PARTS[0] - y * (PARTS[1] - y * (PARTS[2] - y * (PARTS[3] - y * PARTS[4])))))
    for _ in range(6):
        chance = chance * (2.0 - chance)
    return chance
