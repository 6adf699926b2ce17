"""Neighbour lists drawn row by row: any block of rows can be made alone, by any thread."""

from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks
from penstock.graph.generate.layout import Numbering, VertexLayout, community_at, scramble, vertex_communities
from penstock.graph.generate.recipe import EdgeRecipe
from penstock.graph.hashing import document_key, draw, mix, unit
from penstock.kernels import njit

_BLOCK = 1 << 16
_TOP_UPS = 3
_SHORT = 12
"""Lists up to this length are sorted by insertion alone."""


class Choice(NamedTuple):
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


def choice_of(recipe: EdgeRecipe, target: VertexLayout, seed: int, threads: int | None) -> Choice:
    """Settle the degree factor so that the wanted degrees sum to the recipe's count."""
    name = "__".join(recipe.type)
    key = document_key(seed, "degrees of {}", name)
    power = 1.0 / (recipe.degree_exponent - 1.0)
    wanted = recipe.count * recipe.surplus / (2 if recipe.symmetric else 1)
    factor = wanted / target.size
    # The cap bends the mean, so a few fixed-point steps are needed.
    for _ in range(8):
        total = _degree_total(key, power, factor, recipe.max_degree, target.size, threads)
        factor *= wanted / total
    same = recipe.type[0] == recipe.type[2]
    return Choice(
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

    Kernels get the arrays one by one: read through a tuple, an array's references are counted at every step.
    """

    def __init__(self, choice: Choice, target: VertexLayout, source: VertexLayout, dtype: Any) -> None:
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
def _degrees(choice: Choice, sources: int, start: int, out: Array) -> None:
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
    choice: Choice,
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
    """Draw every row; `degrees` becomes what was found, the return value how many in all."""
    used, longest = 0, degrees.max()
    scratch, fill = np.empty(longest, out.dtype), np.empty(longest + 2, np.int64)
    for i in range(degrees.shape[0]):
        found = _draw_list(
            start + i,
            classes[i],
            twins[i],
            choice,
            numbering,
            starts,
            class_ptr,
            class_communities,
            class_ends,
            degrees[i],
            out,
            used,
            scratch,
            fill,
        )
        degrees[i] = found
        used += found
    return used


@njit(nogil=True, cache=True)
def _draw_list(
    row: int,
    kind: int,
    twin: int,
    choice: Choice,
    numbering: Numbering,
    starts: Array,
    class_ptr: Array,
    class_communities: Array,
    class_ends: Array,
    wanted: int,
    out: Array,
    first: int,
    scratch: Array,
    fill: Array,
) -> int:
    """Up to `wanted` different neighbours behind `first`, ascending: draw, sort, drop repeats, top up a few times."""
    key = mix(choice.pick_key ^ np.uint64(row))
    found, counter = 0, 2
    # A few vertices are open and most keep to themselves, as in real graphs: the share is 4u^3 of the mean, u uniform.
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
            position = starts[near] + int(size * unit(bits) ** choice.hub_bias)
            vertex = scramble(numbering, position)
            if vertex != row or choice.loops:
                out[first + filled] = vertex
                filled += 1
        found = _sorted_set(out, first, filled, numbering.size, scratch, fill)
        if found == wanted:
            break
    return found


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
    """Another class: classes stand on a ring, and near ones are chosen more often (log-uniform distance)."""
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
    """Put entries about where they belong: numbers are scrambled, so they lie evenly in [0, bound)."""
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
