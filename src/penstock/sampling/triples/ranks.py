"""Filtered ranks of triples among all entities that can replace one end, in blocks of bounded memory.

A rank is 1 + how many candidates score higher + half of how many score the same. Other true triples do not count.
Triples that share a relation and the other end share their scores, which are computed once.
"""

from collections.abc import Callable

import numpy as np
import torch

from penstock.errors import NotFinite
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.links.edge_ranks import RANKED_BYTES
from penstock.sampling.links.known import End
from penstock.sampling.triples.triple_set import Entities, KnownTriples, Triples

ScoreQueries = Callable[[Array, Array, End, int, int], torch.Tensor]
"""`score(kept, relation, end, low, high)`: scores [b, high - low] of each entity at the other end and relation with
all entities low..high - 1 at `end`, on any device."""


def filtered_ranks(
    score: ScoreQueries,
    triples: Triples,
    end: End,
    entities: Entities,
    known: KnownTriples,
    block_bytes: int = RANKED_BYTES,
) -> Array:
    """The rank (float64, from 1) of each triple among those with `end` replaced; `known` are the true ones."""
    kept = triples.end("source" if end == "destination" else "destination")
    low, high = entities.limits(triples.relation, end)
    keys = known.keys(triples.relation, kept)
    order = np.lexsort((keys, low))
    out = np.empty(triples.total)
    for some in _blocks(keys[order], low[order], high[order], block_bytes):
        places = order[some]
        new = np.concatenate([[True], keys[places[1:]] != keys[places[:-1]]])
        asked, row = places[new], np.cumsum(new) - 1
        first, last = known.bounds(triples.relation[asked], kept[asked], end)
        start, stop = int(low[places[0]]), int(high[places[0]])
        scores = score(kept[asked], triples.relation[asked], end, start, stop)
        own, others = triples.end(end)[places] - start, known.index(end)[1]
        count = _counted if scores.device.type == "cpu" else _counted_on_device
        out[places] = count(scores, row, own, first, last, others - start)
    return out


def _blocks(keys: Array, low: Array, high: Array, block_bytes: int) -> list[slice]:
    """Consecutive triples of one range of candidates, cut between keys so that their scores fit."""
    found, start, queries = list[slice](), 0, 0
    for i in range(len(keys)):
        new = i == start or keys[i] != keys[i - 1]
        if i > start and new and (low[i] != low[start] or (queries + 1) * 4 * (high[i] - low[i]) > block_bytes):
            found.append(slice(start, i))
            start, queries = i, 0
        queries += new
    return [*found, slice(start, len(keys))] if len(keys) else found


def _counted(scores: torch.Tensor, row: Array, own: Array, first: Array, last: Array, others: Array) -> Array:
    out = np.empty(len(row))
    if not _count(scores.numpy(), row, own, first, last, others, out):
        raise _not_finite()
    return out


def _counted_on_device(scores: torch.Tensor, row: Array, own: Array, first: Array, last: Array, others: Array) -> Array:
    """The same with tensors, so that scores need not leave their device."""
    if bool(scores.isnan().any()):
        raise _not_finite()
    rows, column = (torch.from_numpy(each).to(scores.device) for each in (row, own))
    mine = scores[rows, column]
    higher = torch.empty(len(row), dtype=torch.int64, device=scores.device)
    level = torch.empty_like(higher)
    for i in range(0, len(row), 256):
        some = scores[rows[i : i + 256]]
        higher[i : i + 256] = (some > mine[i : i + 256, None]).sum(1)
        level[i : i + 256] = (some == mine[i : i + 256, None]).sum(1)
    lengths = (last - first)[row]
    triple = np.repeat(np.arange(len(row)), lengths)
    place = np.repeat(first[row] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) + np.arange(len(triple))
    partner = others[place.astype(np.int64)]
    counts = partner != own[triple]
    of, at = (torch.from_numpy(each[counts]).to(scores.device) for each in (triple, partner))
    true = scores[rows[of], at]
    higher.index_add_(0, of, -(true > mine[of]).to(torch.int64))
    level.index_add_(0, of, -(true == mine[of]).to(torch.int64))
    # A triple ties with itself.
    ranks: Array = (1 + higher + (level - 1) / 2).to(torch.float64).cpu().numpy()
    return ranks


def _not_finite() -> NotFinite:
    return NotFinite("A score is not a number (NaN), so triples cannot be ranked: the model has diverged.")


@njit(nogil=True, cache=True)
def _count(scores: Array, row: Array, own: Array, first: Array, last: Array, others: Array, out: Array) -> bool:
    """Ranks of the columns `own` of rows, leaving out a row's true ones; False if a score is NaN."""
    for i in range(row.shape[0]):
        line = scores[row[i]]
        mine = line[own[i]]
        higher, level, lower = 0, 0, 0
        for j in range(line.shape[0]):
            higher += line[j] > mine
            level += line[j] == mine
            lower += line[j] < mine
        if higher + level + lower != line.shape[0]:
            return False
        level -= 1
        for k in range(first[row[i]], last[row[i]]):
            if others[k] != own[i]:
                higher -= line[others[k]] > mine
                level -= line[others[k]] == mine
        out[i] = 1 + higher + level / 2
    return True
