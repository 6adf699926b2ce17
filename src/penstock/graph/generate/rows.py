"""Neighbour lists drawn row by row: any block of rows can be made alone, by any thread."""

from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks
from penstock.graph.generate.layout import Layout, community_at, scramble, unscramble
from penstock.graph.generate.recipe import EdgeRecipe
from penstock.graph.hashing import draw, key_of, mix, unit

_BLOCK = 1 << 16
_TOP_UPS = 3


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


def choice_of(recipe: EdgeRecipe, target: Layout, seed: int, threads: int | None) -> Choice:
    """Settle the degree factor so that the wanted degrees sum to the recipe's count."""
    name = "__".join(recipe.type)
    key = key_of(seed, f"degrees of {name}")
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
        key_of(seed, f"picks of {name}"),
        power,
        factor,
        recipe.max_degree,
        recipe.hub_bias,
        1.0 - recipe.within_community,
        recipe.within_class / max(1e-9, 1.0 - recipe.within_community),
        not same,
    )


def make_rows(start: int, stop: int, choice: Choice, target: Layout, source: Layout) -> tuple[Array, Array]:
    """`(lengths, neighbours)` of rows [start, stop), each list ascending without repeats."""
    degrees = np.empty(stop - start, np.int64)
    _degrees(choice, source.size, start, degrees)
    neighbours = np.empty(int(degrees.sum()), np.int64)
    used = _fill(start, choice, target, source, degrees, neighbours, np.empty(int(degrees.max(initial=0)), np.int64))
    return degrees, neighbours[:used]


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
    start: int, choice: Choice, target: Layout, source: Layout, degrees: Array, out: Array, scratch: Array
) -> int:
    """Draw every row; `degrees` becomes what was found, the return value how many in all."""
    used = 0
    for i in range(degrees.shape[0]):
        row = start + i
        position = unscramble(target.key, target.rows, target.columns, target.size, row)
        community = community_at(target.starts, position)
        key = mix(choice.pick_key ^ np.uint64(row))
        found = _draw_list(key, row, community, choice, target, source, degrees[i], scratch)
        out[used : used + found] = scratch[:found]
        degrees[i] = found
        used += found
    return used


@njit(nogil=True, cache=True)
def _draw_list(
    key: np.uint64,
    row: int,
    community: int,
    choice: Choice,
    target: Layout,
    source: Layout,
    wanted: int,
    out: Array,
) -> int:
    """Up to `wanted` different neighbours, ascending: draw, sort, drop repeats, top up a few times."""
    found, counter = 0, 2
    # A few vertices are open and most keep to themselves, as in real graphs: the share is 4u^3 of the mean, u uniform.
    away = min(0.95, 4.0 * unit(draw(key, np.uint64(0))) ** 3 * choice.away)
    for _ in range(_TOP_UPS):
        filled = found
        for place in range(found, wanted):
            vertex = _pick(key, counter, place, community, away, choice, target, source)
            counter += 2
            if vertex != row or choice.loops:
                out[filled] = vertex
                filled += 1
        out[:filled].sort()
        found = 0
        for k in range(filled):
            if k == 0 or out[k] != out[k - 1]:
                out[found] = out[k]
                found += 1
        if found == wanted:
            break
    return found


@njit(nogil=True, cache=True)
def _pick(
    key: np.uint64,
    counter: int,
    place: int,
    community: int,
    away: float,
    choice: Choice,
    target: Layout,
    source: Layout,
) -> int:
    """One neighbour: in the community that corresponds to the row's, in its class, or in a related class.

    A row that has already chosen half a community (or class) looks further away, so that hubs reach their degree.
    """
    u = unit(draw(key, np.uint64(counter)))
    bits = draw(key, np.uint64(counter + 1))
    t, share = unit(bits), unit(mix(bits))
    kind = target.classes[community]
    near = -1
    if u < 1.0 - away:
        near = _twin(source, kind, target.rank[community])
        if near >= 0 and 2 * place > source.starts[near + 1] - source.starts[near]:
            near = -1
    if near < 0 and u < 1.0 - away * (1.0 - choice.class_share):
        near = _in_class(source, kind, share, place)
    if near < 0:
        near = _in_class(source, _related(kind, source.class_ptr.shape[0] - 1, unit(mix(bits ^ key))), share, place)
    if near < 0:
        near = community_at(source.starts, int(share * source.size))
    size = source.starts[near + 1] - source.starts[near]
    position = source.starts[near] + int(size * t**choice.hub_bias)
    return scramble(source.key, source.rows, source.columns, source.size, position)


@njit(nogil=True, cache=True, inline="always")
def _twin(source: Layout, kind: int, rank: int) -> int:
    """The source community that corresponds to the row's: itself, when both ends are of one type. -1: none."""
    first, last = source.class_ptr[kind], source.class_ptr[kind + 1]
    return source.class_communities[first + rank % (last - first)] if last > first else -1


@njit(nogil=True, cache=True, inline="always")
def _related(kind: int, classes: int, share: float) -> int:
    """Another class: classes stand on a ring, and near ones are chosen more often (log-uniform distance)."""
    reach = int(np.exp(abs(2.0 * share - 1.0) * np.log(float(classes))))
    return (kind + (reach if share < 0.5 else -reach)) % classes


@njit(nogil=True, cache=True, inline="always")
def _in_class(source: Layout, kind: int, share: float, place: int) -> int:
    """A community of a class, chosen in proportion to its size; -1 when the row has half the class already."""
    first, last = source.class_ptr[kind], source.class_ptr[kind + 1]
    if last == first or 2 * place > source.class_ends[last - 1]:
        return -1
    wanted = share * source.class_ends[last - 1]
    low, high = first, last - 1
    while low < high:
        middle = (low + high) >> 1
        if source.class_ends[middle] > wanted:
            high = middle
        else:
            low = middle + 1
    community: int = source.class_communities[low]
    return community
