"""Synthetic edges: neighbour lists drawn row by row, and both directions of every drawn edge."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.generate.recipe import EdgeRecipe
from penstock.graph.generate.vertices import Numbering, VertexLayout, community_at, scramble, vertex_communities
from penstock.graph.hashing import document_key, draw, mix, unit
from penstock.kernels import njit
from penstock.processes import map_blocks, run_blocks

# Neighbour lists drawn row by row: any block of rows can be made alone, by any thread.

_BLOCK = 1 << 16
_TOP_UPS = 3
_SHORT = 12
"""Lists up to this length are sorted by insertion alone."""


class NeighbourChoice(NamedTuple):
    """How rows choose their neighbours, as kernels see it."""

    degree_key: np.uint64
    pick_key: np.uint64
    power: float
    factor: float
    """Wanted degree = factor * u^-power."""
    max_degree: int
    hub_bias: float
    away: float
    """Mean share of choices outside the own community."""
    class_share: float
    """Share of those that stay in the class."""
    loops: bool
    """Whether a row may choose its own number (it may between different types)."""


def choice_of(recipe: EdgeRecipe, target: VertexLayout, seed: int, threads: int | None) -> NeighbourChoice:
    """Find the degree factor with which the wanted degrees sum to the recipe's count."""
    name = "__".join(recipe.type)
    key = document_key(seed, "degrees of {}", name)
    power = 1.0 / (recipe.degree_exponent - 1.0)
    wanted = recipe.count * recipe.surplus / (2 if recipe.symmetric else 1)
    factor = wanted / target.size
    # The cap shifts the mean, so a few fixed-point steps are needed.
    for _ in range(8):
        total = _degree_total(key, power, factor, recipe.max_degree, target.size, threads)
        factor *= wanted / total
    same = recipe.type[0] == recipe.type[2]
    return NeighbourChoice(
        key,
        document_key(seed, "picks of {}", name),
        power,
        factor,
        recipe.max_degree,
        recipe.hub_bias,
        1.0 - recipe.within_community,
        recipe.within_class / max(1e-9, 1.0 - recipe.within_community),
        not same,
    )


class RowMaker:
    """Makes any block of a relation's rows from its choice and the two layouts.

    Kernels get the arrays one by one: Numba counts references of arrays that are read through a tuple.
    """

    def __init__(self, choice: NeighbourChoice, target: VertexLayout, source: VertexLayout, dtype: Any) -> None:
        self.choice, self.target, self.source, self.dtype = choice, target, source, dtype
        self._twins = _twins(target, source)

    def block(self, start: int, stop: int) -> tuple[Array, Array]:
        """`(lengths, neighbours)` of rows [start, stop), each list ascending without repeats."""
        source = self.source
        communities = vertex_communities(self.target, start, stop)
        degrees = np.empty(stop - start, np.int64)
        _degrees(self.choice, source.size, start, degrees)
        neighbours = np.empty(int(degrees.sum()), self.dtype)
        used = _fill(
            start,
            self.choice,
            self.target.classes[communities],
            self._twins[communities],
            source.numbering,
            source.starts,
            source.class_ptr,
            source.class_communities,
            source.class_ends,
            degrees,
            neighbours,
        )
        return degrees, neighbours[:used]


def _twins(target: VertexLayout, source: VertexLayout) -> Array:
    """The source community that corresponds to each target community: itself, where both are one type. -1: none."""
    first = source.class_ptr[target.classes]
    members = source.class_ptr[target.classes + 1] - first
    places = np.minimum(first + target.rank % np.maximum(members, 1), len(source.class_communities) - 1)
    return np.where(members > 0, source.class_communities[places], -1).astype(np.int32)


def _degree_total(key: np.uint64, power: float, factor: float, cap: int, count: int, threads: int | None) -> float:
    """Summed in fixed blocks, so that rounding is the same for any number of threads."""
    sums = map_blocks(lambda a, b: _degree_sum(key, power, factor, cap, a, b), count, _BLOCK, threads)
    return float(sum(sums))


@njit(nogil=True, cache=True, inline="always")
def _wanted(key: np.uint64, power: float, factor: float, cap: int, row: int) -> float:
    u = 1.0 - unit(draw(key, np.uint64(row)))
    wanted: float = factor * u**-power
    return min(wanted, float(cap))


@njit(nogil=True, cache=True)
def _degree_sum(key: np.uint64, power: float, factor: float, cap: int, start: int, stop: int) -> float:
    total = 0.0
    for row in range(start, stop):
        total += _wanted(key, power, factor, cap, row)
    return total


@njit(nogil=True, cache=True)
def _degrees(choice: NeighbourChoice, sources: int, start: int, out: Array) -> None:
    """Wanted degrees, rounded up with the probability of the fraction, so that the mean is kept."""
    for i in range(out.shape[0]):
        wanted = _wanted(choice.degree_key, choice.power, choice.factor, choice.max_degree, start + i)
        wanted = min(wanted, 0.5 * sources)
        whole = int(wanted)
        extra = unit(draw(choice.pick_key, np.uint64(start + i))) < wanted - whole
        out[i] = whole + int(extra)


@njit(nogil=True, cache=True)
def _fill(
    start: int,
    choice: NeighbourChoice,
    classes: Array,
    twins: Array,
    numbering: Numbering,
    starts: Array,
    class_ptr: Array,
    class_communities: Array,
    class_ends: Array,
    degrees: Array,
    out: Array,
) -> int:
    """Draw every row; `degrees` becomes what was found, the return value how many in all.

    Up to as many different neighbours as wanted, ascending: draw, sort, drop repeats, and draw more a few times.
    """
    used, longest = 0, degrees.max()
    scratch, fill = np.empty(longest, out.dtype), np.empty(longest + 2, np.int64)
    for i in range(degrees.shape[0]):
        row, kind, twin, wanted = start + i, classes[i], twins[i], degrees[i]
        key = mix(choice.pick_key ^ np.uint64(row))
        found, counter = 0, 2
        # A few vertices have many outside neighbours and most have few, as in real graphs: the share is 4u^3 of the
        # mean, u uniform.
        away = min(0.95, 4.0 * unit(draw(key, np.uint64(0))) ** 3 * choice.away)
        for _ in range(_TOP_UPS):
            filled = found
            for place in range(found, wanted):
                u = unit(draw(key, np.uint64(counter)))
                bits = draw(key, np.uint64(counter + 1))
                counter += 2
                near = -1
                if u < 1.0 - away and twin >= 0 and 2 * place <= starts[twin + 1] - starts[twin]:
                    near = twin
                if near < 0:
                    in_class = u < 1.0 - away * (1.0 - choice.class_share)
                    near = _further(key, bits, place, kind, in_class, starts, class_ptr, class_communities, class_ends)
                size = starts[near + 1] - starts[near]
                vertex = scramble(numbering, starts[near] + int(size * unit(bits) ** choice.hub_bias))
                if vertex != row or choice.loops:
                    out[used + filled] = vertex
                    filled += 1
            found = _sorted_set(out, used, filled, numbering.size, scratch, fill)
            if found == wanted:
                break
        degrees[i] = found
        used += found
    return used


@njit(nogil=True, cache=True)
def _further(
    key: np.uint64,
    bits: np.uint64,
    place: int,
    kind: int,
    in_class: bool,
    starts: Array,
    class_ptr: Array,
    class_communities: Array,
    class_ends: Array,
) -> int:
    """A community of the row's class, or of a related class.

    A row that has already chosen half a community (or class) looks further away, so that hubs reach their degree.
    """
    near, share, classes = -1, unit(mix(bits)), class_ptr.shape[0] - 1
    if in_class:
        near = _in_class(class_ptr[kind], class_ptr[kind + 1], class_communities, class_ends, share, place)
    if near < 0:
        kind = _related(kind, classes, unit(mix(bits ^ key)))
        near = _in_class(class_ptr[kind], class_ptr[kind + 1], class_communities, class_ends, share, place)
    if near < 0:
        near = community_at(starts, int(share * starts[-1]))
    return near


@njit(nogil=True, cache=True, inline="always")
def _related(kind: int, classes: int, share: float) -> int:
    """Another class: classes are on a ring, and near ones are chosen more often (log-uniform distance)."""
    reach = int(np.exp(abs(2.0 * share - 1.0) * np.log(float(classes))))
    return (kind + (reach if share < 0.5 else -reach)) % classes


@njit(nogil=True, cache=True)
def _in_class(first: int, last: int, communities: Array, ends: Array, share: float, place: int) -> int:
    """A community of a class, chosen in proportion to its size; -1 when the row has half the class already."""
    if last == first or 2 * place > ends[last - 1]:
        return -1
    wanted = share * ends[last - 1]
    low, high = first, last - 1
    while low < high:
        middle = (low + high) >> 1
        if ends[middle] > wanted:
            high = middle
        else:
            low = middle + 1
    community: int = communities[low]
    return community


@njit(nogil=True, cache=True)
def _sorted_set(out: Array, first: int, count: int, bound: int, scratch: Array, fill: Array) -> int:
    """Sort `count` entries behind `first` and drop repeats; how many are left."""
    if count > _SHORT:
        _spread(out, first, count, bound, scratch, fill)
    for k in range(first + 1, first + count):
        value, place = out[k], k
        while place > first and out[place - 1] > value:
            out[place] = out[place - 1]
            place -= 1
        out[place] = value
    found = 0
    for k in range(first, first + count):
        if k == first or out[k] != out[k - 1]:
            out[first + found] = out[k]
            found += 1
    return found


@njit(nogil=True, cache=True)
def _spread(out: Array, first: int, count: int, bound: int, scratch: Array, fill: Array) -> None:
    """Put entries approximately where they belong: numbers are scrambled, so they are uniform in [0, bound)."""
    ratio = count / bound
    fill[: count + 2] = 0
    for k in range(first, first + count):
        fill[int(out[k] * ratio) + 1] += 1
        scratch[k - first] = out[k]
    for bucket in range(count + 1):
        fill[bucket + 1] += fill[bucket]
    for k in range(count):
        bucket = int(scratch[k] * ratio)
        out[first + fill[bucket]] = scratch[k]
        fill[bucket] += 1


# Both directions of every drawn edge, and the edges held out for link prediction.

_MERGED_BLOCK = 1 << 15


def transposed(indptr: Array, indices: Array, threads: int) -> tuple[Array, Array]:
    """Out-lists of drawn in-lists. Every thread scans all edges and keeps those of its own range of vertices."""
    count = len(indptr) - 1
    share = max(1, -(-count // threads))
    out_indptr = np.zeros(count + 1, np.int64)
    run_blocks(lambda a, b: _count_range(indices, a, b, out_indptr[1:]), count, share, threads)
    np.cumsum(out_indptr, out=out_indptr)
    out = np.empty(len(indices), indices.dtype)
    fill = out_indptr[:-1].copy()
    run_blocks(lambda a, b: _scatter_range(indptr, indices, a, b, fill, out), count, share, threads)
    return out_indptr, out


def merged_rows(
    half: tuple[Array, Array],
    other: tuple[Array, Array],
    start: int,
    stop: int,
    key: np.uint64,
    held_out: tuple[float, float],
) -> tuple[Array, Array, Array]:
    """`(lengths, neighbours, held)` of rows [start, stop): the union of both directions.

    `held` are rows (source, destination, 0 for val or 1 for test) of held-out edges, each named once.
    """
    space = int(half[0][stop] - half[0][start] + other[0][stop] - other[0][start])
    lengths = np.zeros(stop - start, np.int64)
    out = np.empty(space, half[1].dtype)
    held = np.empty((space if sum(held_out) else 0, 3), np.int64)
    used, kept_out = _merge(*half, *other, start, key, held_out[0], sum(held_out), lengths, out, held)
    return lengths, out[:used], held[:kept_out]


def merge_all(
    half: tuple[Array, Array],
    other: tuple[Array, Array],
    key: np.uint64,
    held_out: tuple[float, float],
    threads: int | None,
) -> Iterator[tuple[Array, Array, Array]]:
    """`merged_rows` of every block in order."""
    count = len(half[0]) - 1
    return map_blocks(lambda a, b: merged_rows(half, other, a, b, key, held_out), count, _MERGED_BLOCK, threads)


@njit(nogil=True, cache=True)
def _count_range(indices: Array, low: int, high: int, counts: Array) -> None:
    for k in range(indices.shape[0]):
        if low <= indices[k] < high:
            counts[indices[k]] += 1


@njit(nogil=True, cache=True)
def _scatter_range(indptr: Array, indices: Array, low: int, high: int, fill: Array, out: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            target = indices[k]
            if low <= target < high:
                out[fill[target]] = row
                fill[target] += 1


@njit(nogil=True, cache=True)
def _merge(
    a_ptr: Array,
    a_idx: Array,
    b_ptr: Array,
    b_idx: Array,
    start: int,
    key: np.uint64,
    val_share: float,
    held_share: float,
    lengths: Array,
    out: Array,
    held: Array,
) -> tuple[int, int]:
    used = kept_out = 0
    for i in range(lengths.shape[0]):
        row = start + i
        first = used
        a, b = a_ptr[row], b_ptr[row]
        while a < a_ptr[row + 1] or b < b_ptr[row + 1]:
            if b >= b_ptr[row + 1] or (a < a_ptr[row + 1] and a_idx[a] <= b_idx[b]):
                vertex = a_idx[a]
                if b < b_ptr[row + 1] and b_idx[b] == vertex:
                    b += 1
                a += 1
            else:
                vertex = b_idx[b]
                b += 1
            if held_share > 0.0:
                # The draw depends on the unordered pair, so both directions agree.
                share = unit(draw(mix(key ^ np.uint64(min(row, vertex))), np.uint64(max(row, vertex))))
                if share < held_share:
                    if vertex < row:
                        held[kept_out, 0], held[kept_out, 1] = vertex, row
                        held[kept_out, 2] = 0 if share < val_share else 1
                        kept_out += 1
                    continue
            out[used] = vertex
            used += 1
        lengths[i] = used - first
    return used, kept_out
