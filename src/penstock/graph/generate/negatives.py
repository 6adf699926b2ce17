"""Pairs that are no edges, to rank held-out edges against."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, key_of
from penstock.kernels import njit

_TRIES = 1000
"""Draws a pair before giving up: a graph so dense has too few pairs without an edge."""


def unlinked_pairs(indptr: Array, indices: Array, held_out: dict[str, Array], seed: int) -> dict[str, Array]:
    """`<name>_negative`: uniform pairs that are neither edges nor held out, as many as each held-out set has."""
    count = len(indptr) - 1
    pairs = np.concatenate(list(held_out.values()))
    kept_out = np.unique(np.concatenate([pairs[:, 0] * count + pairs[:, 1], pairs[:, 1] * count + pairs[:, 0]]))
    found = {}
    for name, positives in held_out.items():
        out = np.empty((len(positives), 2), np.int64)
        drawn = _draw_pairs(key_of(seed, f"negatives {name}"), indptr, indices, kept_out, out)
        found[f"{name}_negative"] = out[:drawn]
    return found


@njit(nogil=True, cache=True)
def _draw_pairs(key: np.uint64, indptr: Array, indices: Array, kept_out: Array, out: Array) -> int:
    count = indptr.shape[0] - 1
    drawn = counter = 0
    while drawn < out.shape[0] and counter < 2 * _TRIES * out.shape[0]:
        source = below(draw(key, np.uint64(counter)), count)
        target = below(draw(key, np.uint64(counter + 1)), count)
        counter += 2
        low, high = indptr[target], indptr[target + 1]
        place = low + np.searchsorted(indices[low:high], source)
        linked = place < high and indices[place] == source
        name = np.searchsorted(kept_out, source * count + target)
        held = name < kept_out.shape[0] and kept_out[name] == source * count + target
        if source != target and not linked and not held:
            out[drawn, 0], out[drawn, 1] = source, target
            drawn += 1
    return drawn
