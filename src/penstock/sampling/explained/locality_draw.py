"""Draws of a vertex's neighbours, local and remote ones apart, with exact inclusion probabilities.

Of a list of d neighbours n are remote, so their share is r = n / d. Of k = min(fan-out, d) draws
max(k r - bias k, LEAST_REMOTE k r) are remote in the mean and the others local, as far as there are local neighbours.

- Remote neighbours are drawn by Poisson sampling: u is taken where a uniform number of u's own lies below its inclusion
  probability p_u = min(1, c score_u), and c is such that the probabilities add up to the expected number. The uniform
  number depends on the batch, the hop and u alone, as in LABOR: the lists of a hop agree on whom to take, so that fewer
  distinct rows travel.
- Local neighbours are drawn uniformly without replacement (conditional Poisson sampling with equal probabilities). A
  number of draws that is no whole one is rounded up or down at random, with its fraction as the chance.

Estimator: Horvitz and Thompson's. An edge's weight is one over its inclusion probability, so that the weighted sum over
what was drawn is unbiased for the sum over the whole list, whatever the scores are; they change its variance alone.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit

LEAST_REMOTE = 0.25
"""Of the remote neighbours that a uniform draw would take, the share that is taken at least, whatever the bias."""
_ROUNDING = np.uint64(0xD1B54A32D192ED03)
_LOCAL = np.uint64(0x8CB92BA72F3D8DD7)
"""Streams of their own under a hop's key: for rounding, and for the choice among local neighbours."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def expected_remote(fanout: int, remote: int, length: int, bias: float) -> float:
    """Draws among the `remote` ones of `length` neighbours, in the mean; a negative fan-out asks for all neighbours."""
    if remote == 0:
        return 0.0
    wanted = length if fanout < 0 else min(fanout, length)
    uniform = wanted * remote / length
    return min(float(remote), max(uniform - bias * wanted, LEAST_REMOTE * uniform))


@njit(nogil=True, cache=True)
def inclusion_probabilities(scores: Array, expected: float, out: Array) -> None:
    """min(1, c score) of positive scores, with c such that they add up to `expected`, which is at most their number."""
    _fill_probabilities(scores, scores.shape[0], expected, out)


@njit(nogil=True, cache=True)
def _fill_probabilities(scores: Array, count: int, expected: float, out: Array) -> None:
    """`inclusion_probabilities` of the first `count` scores: a slice for every list would take longer than this."""
    if expected >= count:
        for k in range(count):
            out[k] = 1.0
        return
    total = most = 0.0
    for k in range(count):
        total += scores[k]
        most = max(most, scores[k])
    factor = expected / total if total > 0 else 0.0
    if most * factor < 1.0:
        # Most lists have nobody who is certain to be drawn.
        for k in range(count):
            out[k] = scores[k] * factor
        return
    for k in range(count):
        out[k] = -1.0
    certain = 0
    while True:
        total = 0.0
        for k in range(count):
            if out[k] < 0:
                total += scores[k]
        factor = (expected - certain) / total if total > 0 else 0.0
        more = 0
        for k in range(count):
            if out[k] < 0 and scores[k] * factor >= 1.0:
                out[k] = 1.0
                more += 1
        certain += more
        if more == 0:
            break
    for k in range(count):
        if out[k] < 0:
            out[k] = scores[k] * factor


@njit(nogil=True, cache=True)
def draw_by_locality(
    indptr: Array,
    indices: Array,
    list_names: Array,
    source_names: Array,
    home: Array,
    scored: Array,
    scores: Array,
    other_score: float,
    key: np.uint64,
    fanout: int,
    bias: float,
    readers: Array,
) -> tuple[Array, Array, Array]:
    """Draw in-neighbours of some vertices: offsets, positions in the lists, and float32 weights.

    Sources in one of the ranges [first, last) of `home` are local. The remote sources `scored`, ascending, have
    positive `scores`, all others have `other_score`. `list_names` are the original numbers of the lists' vertices, and
    `source_names` those of the sources; empty: the numbers themselves.
    """
    out_indptr = np.zeros(readers.shape[0] + 1, np.int64)
    longest = 0
    for row in range(readers.shape[0]):
        longest = max(longest, indptr[readers[row] + 1] - indptr[readers[row]])
    far, near = np.empty(longest, np.int64), np.empty(longest, np.int64)
    far_scores, chances = np.empty(longest, np.float64), np.empty(longest, np.float64)
    positions, weights = (
        np.empty(64 + 16 * readers.shape[0], np.int64),
        np.empty(64 + 16 * readers.shape[0], np.float32),
    )
    used, table = 0, _hashed(scored)
    for row in range(readers.shape[0]):
        v = readers[row]
        first, last = indptr[v], indptr[v + 1]
        remote = local = 0
        for k in range(first, last):
            u = indices[k]
            if _is_home(home, u):
                near[local] = k
                local += 1
            else:
                far[remote] = k
                place = table[_slot(table, scored, u)]
                far_scores[remote] = scores[place - 1] if place else other_score
                remote += 1
        if used + last - first > positions.shape[0]:
            positions, weights = _wider(positions, used + last - first), _wider(weights, used + last - first)
        expected = expected_remote(fanout, remote, last - first, bias)
        _fill_probabilities(far_scores, remote, expected, chances)
        for k in range(remote):
            # What is certain needs no random number.
            if chances[k] >= 1.0 or unit(draw(key, np.uint64(_named(source_names, indices[far[k]])))) < chances[k]:
                positions[used] = far[k]
                weights[used] = 1.0 / chances[k]
                used += 1
        wanted = last - first if fanout < 0 else min(fanout, last - first)
        taken = min(float(local), wanted - expected)
        name = np.uint64(_named(list_names, v))
        needed = int(taken)
        if unit(draw(key ^ _ROUNDING, name)) < taken - needed:
            needed += 1
        own = draw(key ^ _LOCAL, name)
        for k in range(local):
            if needed == 0:
                break
            # Each of those left is as likely as every other to be among those still needed; all are where all must be.
            if needed == local - k or unit(draw(own, np.uint64(near[k] - first))) * (local - k) < needed:
                positions[used] = near[k]
                weights[used] = local / taken
                used += 1
                needed -= 1
        out_indptr[row + 1] = used
    return out_indptr, positions[:used].copy(), weights[:used].copy()


@njit(nogil=True, cache=True, inline="always")
def _is_home(home: Array, vertex: int) -> bool:
    found = False
    for k in range(home.shape[0]):
        found |= home[k, 0] <= vertex < home[k, 1]
    return found


@njit(nogil=True, cache=True, inline="always")
def _named(names: Array, vertex: int) -> int:
    return vertex if names.shape[0] == 0 else names[vertex]


@njit(nogil=True, cache=True)
def _hashed(scored: Array) -> Array:
    """A table of the places of scored vertices plus one, by a hash of the vertex; 0: none."""
    size = 16
    while size < 4 * scored.shape[0]:
        size *= 2
    table = np.zeros(size, np.int32)
    for k in range(scored.shape[0]):
        table[_slot(table, scored, scored[k])] = k + 1
    return table


@njit(nogil=True, cache=True, inline="always")
def _slot(table: Array, scored: Array, vertex: int) -> np.uint64:
    """The slot that has a vertex's place, or the empty one where it would be."""
    mask = np.uint64(table.shape[0] - 1)
    slot = (np.uint64(vertex) * _GOLDEN >> np.uint64(32)) & mask
    while table[slot] != 0 and scored[table[slot] - 1] != vertex:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def _wider(array: Array, needed: int) -> Array:
    wider = np.empty(2 * needed, array.dtype)
    wider[: array.shape[0]] = array
    return wider
