"""Ranks of true edges among candidates, computed in blocks of bounded memory.

A rank is 1 + how many candidates score higher + half of how many score the same: the mean of the best and the worst
rank. A model that scores everything alike is in the middle, not at the top.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from penstock.errors import NotFinite, PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key
from penstock.kernels import njit
from penstock.processes import ranges
from penstock.sampling.links.known import End, KnownEdges, checked_pairs
from penstock.sampling.links.negatives import DrawnNegatives, Positives, Uniform

ScoreBlock = Callable[[Array, Array | None], Array]
"""`score_block(kept, others)`: scores [b, c] of the kept ends [b] with others [b, c]; None: all vertices, [b, n]."""

RANKED_BYTES = 64 << 20
"""Bytes of the scores that are ranked at once."""


def ranks(
    score_block: ScoreBlock,
    pairs: Array,
    known: KnownEdges,
    candidates: int | Literal["all"] = "all",
    filtered: bool = True,
    corrupt: End = "destination",
    seed: int = 0,
    block_bytes: int = RANKED_BYTES,
) -> Array:
    """The rank (float64, from 1) of each pair [m, 2] among others with its `corrupt` end replaced.

    `candidates` are all vertices of that end's type or so many drawn ones. With `filtered`, true edges of `known` do
    not count (give it the held-out pairs too). Scores take `block_bytes` (float64), or one row if that is more.
    """
    if corrupt not in ("destination", "source"):
        raise PenstockError(
            f"Ranks cannot replace {corrupt!r}: choose destination or source; to replace both, rank twice.",
            code="unknown-name",
        )
    if candidates != "all" and (not isinstance(candidates, int) or candidates < 1):
        raise PenstockError(
            f"candidates is {candidates!r}: give 'all', or 1 or more.",
            code="value-out-of-range",
        )
    pairs = checked_pairs(pairs, known.num_sources, known.num_destinations, "Pairs to rank")
    width = known.candidates(corrupt) if candidates == "all" else candidates + 1
    rows = max(1, block_bytes // (8 * width))
    if candidates == "all":
        return _ranks_among_all(score_block, pairs, known, filtered, corrupt, rows)
    found = [
        _ranks_among_drawn(score_block, pairs[start:stop], known, Uniform(candidates, corrupt, filtered), corrupt, seed)
        for start, stop in ranges(len(pairs), rows)
    ]
    return np.concatenate([np.empty(0), *found])


def ranks_of_scores(positive: Array, negative: Array, counts: Array | None = None) -> Array:
    """Ranks of scores [m] among negatives [m, k] of their own, or [k] shared by all; `counts` is a
    mask of negatives.
    """
    positive, negative = np.asarray(positive), np.asarray(negative)
    _refuse_nan(bool(np.isnan(positive).any() or np.isnan(negative).any()))
    if negative.ndim == 1:
        ascending = np.sort(negative if counts is None else negative[counts])
        higher = len(ascending) - np.searchsorted(ascending, positive, side="right")
        at_least = len(ascending) - np.searchsorted(ascending, positive, side="left")
        return np.asarray(1 + (higher + at_least) / 2)
    mask = np.True_ if counts is None else counts
    higher = ((negative > positive[:, None]) & mask).sum(1)
    level = ((negative == positive[:, None]) & mask).sum(1)
    return np.asarray(1 + higher + level / 2)


def dot_product(kept: Array, others: Array) -> ScoreBlock:
    """Scores of embeddings: the kept end's matrix [n, d] and the replaced end's."""

    def score_block(vertices: Array, candidates: Array | None) -> Array:
        left = kept[vertices]
        if candidates is None:
            return np.asarray(left @ others.T)
        return np.asarray(np.einsum("bd,bcd->bc", left, others[candidates]))

    return score_block


def _ranks_among_all(
    score_block: ScoreBlock, pairs: Array, known: KnownEdges, filtered: bool, corrupt: End, rows: int
) -> Array:
    kept, own = _ends(pairs, corrupt)
    anchors, place = np.unique(kept, return_inverse=True)
    if filtered:
        indptr, partners = known.partners(anchors, corrupt)
    else:
        indptr, partners = np.zeros(len(anchors) + 1, np.int64), np.empty(0, np.int64)
    out = np.empty(len(pairs))
    for start, stop in ranges(len(pairs), rows):
        scores = _checked(score_block(kept[start:stop], None), (stop - start, known.candidates(corrupt)))
        good = _rank_rows(scores, own[start:stop], place[start:stop], indptr, partners, out[start:stop])
        _refuse_nan(not good)
    return out


def drawn_candidates(
    pairs: Array, known: KnownEdges, candidates: int, filtered: bool = True, corrupt: End = "destination", seed: int = 0
) -> Array:
    """The different vertices, ascending, among which `ranks` with the same arguments ranks some pairs."""
    pairs = checked_pairs(pairs, known.num_sources, known.num_destinations, "Pairs to rank")
    found, policy = np.empty(0, np.int64), Uniform(candidates, corrupt, filtered)
    for start, stop in ranges(len(pairs), max(1, RANKED_BYTES // (8 * candidates))):
        found = np.union1d(found, _drawn(pairs[start:stop], known, policy, corrupt, seed).vertices)
    return found


def _drawn(pairs: Array, known: KnownEdges, policy: Uniform, corrupt: End, seed: int) -> DrawnNegatives:
    positives = Positives(pairs[:, 0].copy(), pairs[:, 1].copy(), np.zeros(len(pairs), np.int64))
    return policy.draw(positives, corrupt, known, document_key(seed, "ranking/{}", corrupt))


def _ranks_among_drawn(
    score_block: ScoreBlock, pairs: Array, known: KnownEdges, policy: Uniform, corrupt: End, seed: int
) -> Array:
    drawn = _drawn(pairs, known, policy, corrupt, seed)
    kept, own = _ends(pairs, corrupt)
    others = np.concatenate([own[:, None], drawn.vertices], axis=1)
    scores = _checked(score_block(kept, others), others.shape)
    return ranks_of_scores(scores[:, 0], scores[:, 1:], drawn.mask)


def _ends(pairs: Array, corrupt: End) -> tuple[Array, Array]:
    source, destination = np.ascontiguousarray(pairs.T)
    return (source, destination) if corrupt == "destination" else (destination, source)


def _checked(scores: Array, shape: tuple[int, ...]) -> Array:
    scores = np.asarray(scores)
    if scores.shape != shape:
        raise PenstockError(
            f"The scores of a block have shape {scores.shape} where {shape} is expected.", code="shape-mismatch"
        )
    return scores


def _refuse_nan(found: bool) -> None:
    if found:
        raise NotFinite("A score is not a number (NaN), so edges cannot be ranked: the model has diverged.")


@njit(nogil=True, cache=True)
def _rank_rows(scores: Array, own: Array, place: Array, indptr: Array, partners: Array, out: Array) -> bool:
    """Ranks of the column `own` of each row, leaving out the row's partners; False if a score is NaN."""
    for i in range(scores.shape[0]):
        score = scores[i, own[i]]
        higher, level, lower = 0, 0, 0
        for j in range(scores.shape[1]):
            higher += scores[i, j] > score
            level += scores[i, j] == score
            lower += scores[i, j] < score
        if higher + level + lower != scores.shape[1]:
            return False
        level -= 1
        for k in range(indptr[place[i]], indptr[place[i] + 1]):
            if partners[k] != own[i]:
                higher -= scores[i, partners[k]] > score
                level -= scores[i, partners[k]] == score
        out[i] = 1 + higher + level / 2
    return True
