"""`stream`: near METIS's cut in a fraction of its memory, for graphs whose partitioner state would not fit.

The graph is read in passes, in order: label propagation finds small clusters, the graph of clusters is cut by METIS
under all constraints, and further passes move single vertices to the part where most of their neighbours are.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.kernels import njit
from penstock.partition.directions import BothDirections, lists_of
from penstock.partition.methods.clusters import (
    ClusteredGraph,
    LabelCounts,
    Number,
    clear,
    cluster,
    contract,
    new_table,
    over_blocks,
    tally,
    waves,
)
from penstock.partition.methods.metis import part_adjacency, require_metis
from penstock.partition.problem import Adjacency, Problem, WholeAdjacency, add_up, constraints_in
from penstock.partition.refine import repaired
from penstock.processes import scratch_folder

_SMALL = 1 << 16
_SHARE, _LARGEST = 6, 6 << 20
"""METIS gets a graph of at most a sixth of the entries, and of 6 Mi entries in all, at some 80 bytes each."""
_ROOM = 1 / 100
"""The share of a part that a cluster may have, of any constraint."""
_LEVELS = 8
_LEVEL_PASSES = 3
_LARGEST_SUM = 1 << 30
_FENNEL = 2.0
"""The price of a part's load, in shares of the mean degree. Fennel's 0.75 left the parts too full to move into."""


def assign_stream(problem: Problem) -> Array:
    """Parts by clusters, METIS and as many passes over single vertices as the problem asks for."""
    require_metis()
    with scratch_folder() as scratch:
        try:
            return _assign(problem, scratch)
        except OSError as error:
            raise PenstockError(
                f"Could not write to {scratch}: {error.strerror}; free space or set TMPDIR.", code="write-failed"
            ) from error


def _assign(problem: Problem, folder: Path) -> Array:
    constraints, threads, progress = problem.constraints, problem.threads, problem.progress
    lists = lists_of(problem.whole, folder, threads, progress)
    levels = [ClusteredGraph(lists, lambda a, b: constraints.block(a, b).astype(np.int64), constraints.totals)]
    labels: list[Array] = []
    most, room = max(_SMALL, min(levels[0].entries // _SHARE, _LARGEST)), _ROOM
    while not labels or (levels[-1].entries > most and len(labels) < _LEVELS and room < 0.5):
        count = levels[-1].lists.rows
        label, clusters = np.arange(count, dtype=index_dtype(count)), count
        if levels[-1].entries > most:
            label, clusters = cluster(levels[-1], room, problem.parts, problem.seed, threads, progress)
        inside = folder / f"level{len(levels)}"
        inside.mkdir()
        levels.append(contract(levels[-1], label, clusters, inside, threads, progress))
        labels.append(label)
        if clusters > 0.7 * count:
            # Only larger clusters can merge further.
            room *= 2
    part = _coarse_parts(problem, levels[-1]).astype(_part_dtype(problem.parts))
    while labels:
        part = _improved(problem, levels.pop(), part, _LEVEL_PASSES, 0.0)[labels.pop()]
    return _improved(problem, levels[0], part, problem.passes, _FENNEL).astype(np.int32)


def _part_dtype(parts: int) -> np.dtype[np.generic]:
    return np.dtype(np.uint8 if parts <= 1 << 8 else np.uint16 if parts <= 1 << 16 else np.int32)


def _coarse_parts(problem: Problem, level: ClusteredGraph) -> Array:
    """Parts of the graph of clusters by METIS, moved into the tolerance where METIS missed it."""
    lists, parts = level.lists, problem.parts
    weights = level.weights(0, lists.rows)
    # METIS's integers may have 32 bits.
    weights = -(-weights // np.maximum(1, -(-weights.sum(1) // _LARGEST_SUM))[:, None])
    edges = -(-lists.weights // max(1, -(-int(lists.weights.sum()) // _LARGEST_SUM)))
    adjacency = Adjacency(lists.indptr, lists.indices, edges)
    with problem.progress.step(f"METIS, {lists.rows:,} clusters with {len(lists.indices):,} entries"):
        found = part_adjacency(adjacency, weights, parts, problem.tolerance, problem.seed)
    coarse = WholeAdjacency(problem.whole.graph, {}, lists.indptr, lists.indices)
    names = problem.constraints.names
    return repaired(Problem(coarse, parts, constraints_in(names, weights), problem.tolerance), found)


# Passes over vertices that have a part: each goes where it has most neighbours, less Fennel's price of the part's load,
# if it fits every constraint there. Threads find who would go; the moves are then decided one after the other from
# what holds at that moment.


def _improved(problem: Problem, level: ClusteredGraph, part: Array, passes: int, price: float) -> Array:
    """The parts after so many passes; changed in place."""
    parts, lists = problem.parts, level.lists
    loads = np.zeros((len(level.totals), parts), np.int64)
    for start, stop in waves(lists.rows):
        add_up(part[start:stop], np.ascontiguousarray(level.weights(start, stop)), loads)
    capacities = problem.capacities()
    means = np.maximum(level.totals / parts, 1e-30)
    price *= level.entries / max(1, lists.rows)
    table = new_table()
    with ThreadPoolExecutor(problem.threads) as pool:
        for turn in range(passes):
            moved = 0
            with problem.progress.step(f"moving vertices, pass {turn + 1}", lists.rows, "vertices"):
                for start, stop in waves(lists.rows):
                    weights = np.ascontiguousarray(level.weights(start, stop))
                    wanted = np.zeros(stop - start, np.bool_)

                    def find(a: int, b: int, s: int = start, w: Array = weights, out: Array = wanted) -> None:
                        own = np.ascontiguousarray(w[:, a - s : b - s])
                        _find_movers(lists, a, b, part, own, loads, capacities, means, price, out[a - s : b - s])

                    over_blocks(pool, problem.threads, start, stop, find)
                    movers = np.flatnonzero(wanted)
                    moved += _move(lists, start, movers, part, weights, loads, capacities, means, price, table)
                    problem.progress.advance(stop - start)
            if not moved:
                break
    return part


@njit(nogil=True, cache=True, writes=("wanted",))
def _find_movers(
    lists: BothDirections,
    start: int,
    stop: int,
    part: Array,
    weights: Array,
    loads: Array,
    capacities: Array,
    means: Array,
    price: float,
    wanted: Array,
) -> None:
    table = new_table()
    for v in range(start, stop):
        best = _best_part(lists, v, part, weights, v - start, loads, capacities, means, price, table)
        wanted[v - start] = best != part[v]


@njit(nogil=True, cache=True, writes=("part", "loads", "table"))
def _move(
    lists: BothDirections,
    first: int,
    movers: Array,
    part: Array,
    weights: Array,
    loads: Array,
    capacities: Array,
    means: Array,
    price: float,
    table: LabelCounts,
) -> int:
    moved = 0
    for i in movers:
        v = first + i
        best, old = _best_part(lists, v, part, weights, i, loads, capacities, means, price, table), part[v]
        if best != old:
            for c in range(loads.shape[0]):
                loads[c, old] -= weights[c, i]
                loads[c, best] += weights[c, i]
            part[v] = best
            moved += 1
    return moved


@njit(nogil=True, cache=True, writes=("table",))
def _best_part(
    lists: BothDirections,
    v: int,
    part: Array,
    weights: Array,
    i: int,
    loads: Array,
    capacities: Array,
    means: Array,
    price: float,
    table: LabelCounts,
) -> Number:
    """The part where v gains most, or its own where none gains anything. From a part that is too full v goes wherever
    it fits.
    """
    home = np.int64(part[v])
    found = tally(lists, v, part, table)
    slots, counts, used = table.slots, table.counts, table.used
    near_home = 0
    for k in range(found):
        if slots[used[k]] == home:
            near_home = counts[used[k]]
    home_load, home_fits = _fullness(weights, i, loads, capacities, means, home, False)
    home_price = price * np.sqrt(home_load)
    best, best_gain = home, 1e-9 if home_fits else -np.inf
    for k in range(found):
        q = slots[used[k]]
        gain = float(counts[used[k]] - near_home)
        if q != home and gain >= best_gain - price:
            load, fits = _fullness(weights, i, loads, capacities, means, q, True)
            gain -= price * np.sqrt(load) - home_price
            if fits and (gain > best_gain or (gain == best_gain and q < best)):
                best, best_gain = q, gain
    if best == home and not home_fits:
        least = np.inf
        for q in range(loads.shape[1]):
            load, fits = _fullness(weights, i, loads, capacities, means, q, True)
            if q != home and fits and load < least:
                best, least = np.int64(q), load
    clear(table, found)
    return best


@njit(nogil=True, cache=True, inline="always")
def _fullness(
    weights: Array, i: int, loads: Array, capacities: Array, means: Array, p: Number, joins: bool
) -> tuple[float, bool]:
    """The largest load of a part, relative to the mean, over the constraints that a vertex adds to; and whether it
    fits.
    """
    load, fits = 0.0, True
    for c in range(loads.shape[0]):
        if weights[c, i] > 0:
            after = loads[c, p] + (weights[c, i] if joins else 0)
            load = max(load, after / means[c])
            fits &= after <= capacities[c]
    return load, fits
