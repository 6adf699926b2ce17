"""One chain of `search`: simulated annealing over placements, scored by the load of links.

A proposal changes few flows, so its score follows from few additions. Machines may be over-used temporarily, with a
penalty that grows with it: on packed clusters there is no other way from one packing to the next. Only placements that
respect every limit are kept.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, unit
from penstock.graph.hashing import unit as unit_interval
from penstock.kernels import njit
from penstock.plan.placement.problem import Tables, Walk, move, over_use

# Changes that a search tries: a unit elsewhere, two units exchanged, a worker moved with its samplers. A proposal is a
# short list of (unit, former machine); it is carried out at once and can be undone.

DRAWS = 8  # random numbers that one proposal may use
_NEAR = 0.3  # of the moves go to the machine of a partner in the unit's group
_MOVES, _SWAPS, _SWAPS_NEAR = 0.35, 0.3, 0.2  # the rest exchanges groups


class Proposal(NamedTuple):
    """Buffers for what a proposal changed."""

    units: Array  # int32
    came_from: Array  # int32


def room_for_proposal(tables: Tables) -> Proposal:
    """A proposal moves two groups at most."""
    largest = 2 * max(int(np.diff(tables.group_starts).max(initial=1)), 1)
    return Proposal(np.empty(largest, np.int32), np.empty(largest, np.int32))


@njit(nogil=True, cache=True)
def propose(tables: Tables, walk: Walk, key: np.uint64, step: int, proposal: Proposal) -> int:
    """Change the walk at random; returns how many units moved (0: the draw had nothing to change)."""
    counter = np.uint64(step * DRAWS)
    kind = _real(key, counter)
    unit = tables.movable[below(draw(key, counter + np.uint64(1)), tables.movable.shape[0])]
    machines = tables.capacities.shape[0]
    to = below(draw(key, counter + np.uint64(2)), machines)
    near = _partner(tables, unit, draw(key, counter + np.uint64(3)))
    if kind < _MOVES:
        if near >= 0 and _real(key, counter + np.uint64(4)) < _NEAR:
            to = walk.units[near]
        return _put(tables, walk, unit, to, proposal, 0)
    if kind < _MOVES + _SWAPS:
        other = tables.movable[below(draw(key, counter + np.uint64(5)), tables.movable.shape[0])]
        return _swap(tables, walk, unit, other, proposal)
    if kind < _MOVES + _SWAPS + _SWAPS_NEAR:
        # A unit is exchanged with one of another group on its partner's machine.
        if near < 0:
            return 0
        other = _someone_on(tables, walk, walk.units[near], tables.group_of[unit], draw(key, counter + np.uint64(5)))
        return _swap(tables, walk, unit, other, proposal) if other >= 0 else 0
    return _exchange_groups(tables, walk, unit, to, draw(key, counter + np.uint64(6)), proposal)


@njit(nogil=True, cache=True)
def take_back(tables: Tables, walk: Walk, proposal: Proposal, moved: int) -> None:
    """Undo a proposal that moved so many units, the last one first."""
    for k in range(moved - 1, -1, -1):
        move(tables, walk, proposal.units[k], proposal.came_from[k])


@njit(nogil=True, cache=True)
def _put(tables: Tables, walk: Walk, unit: int, to: int, proposal: Proposal, moved: int) -> int:
    if walk.units[unit] == to:
        return moved
    proposal.units[moved] = unit
    proposal.came_from[moved] = walk.units[unit]
    move(tables, walk, unit, to)
    return moved + 1


@njit(nogil=True, cache=True)
def _swap(tables: Tables, walk: Walk, unit: int, other: int, proposal: Proposal) -> int:
    here, there = walk.units[unit], walk.units[other]
    if here == there:
        return 0
    moved = _put(tables, walk, unit, there, proposal, 0)
    return _put(tables, walk, other, here, proposal, moved)


@njit(nogil=True, cache=True)
def _exchange_groups(tables: Tables, walk: Walk, unit: int, to: int, bits: np.uint64, proposal: Proposal) -> int:
    """Move the units of a group that are on one machine to another one, and those of a group there back.

    Half of the time nothing is moved back.
    """
    group, here = tables.group_of[unit], walk.units[unit]
    if group < 0 or here == to:
        return 0
    found = _someone_on(tables, walk, to, group, bits) if bits & np.uint64(1) else -1
    moved = _put_group(tables, walk, group, here, to, proposal, 0)
    if found >= 0 and tables.group_of[found] >= 0:
        moved = _put_group(tables, walk, tables.group_of[found], to, here, proposal, moved)
    return moved


@njit(nogil=True, cache=True)
def _put_group(tables: Tables, walk: Walk, group: int, here: int, to: int, proposal: Proposal, moved: int) -> int:
    for at in range(tables.group_starts[group], tables.group_starts[group + 1]):
        if walk.units[tables.group_units[at]] == here:
            moved = _put(tables, walk, tables.group_units[at], to, proposal, moved)
    return moved


@njit(nogil=True, cache=True)
def _partner(tables: Tables, unit: int, bits: np.uint64) -> int:
    """A sampler's worker, or one of a worker's samplers; -1 without."""
    group = tables.group_of[unit]
    if group < 0:
        return -1
    first, last = tables.group_starts[group], tables.group_starts[group + 1]
    if tables.group_units[first] != unit:
        return int(tables.group_units[first])
    return int(tables.group_units[first + 1 + below(bits, last - first - 1)]) if last - first > 1 else -1


@njit(nogil=True, cache=True)
def _someone_on(tables: Tables, walk: Walk, machine: int, not_of: int, bits: np.uint64) -> int:
    """A movable unit on a machine that is not of a group, chosen at random; -1 where there is none."""
    count = tables.movable.shape[0]
    first = below(bits, count)
    for k in range(count):
        unit = tables.movable[(first + k) % count]
        if walk.units[unit] == machine and tables.group_of[unit] != not_of:
            return int(unit)
    return -1


@njit(nogil=True, cache=True)
def _real(key: np.uint64, counter: np.uint64) -> float:
    return unit_interval(draw(key, counter))


_POWER = 32  # of the norm over links: near the largest, yet it sees the second
_ACCEPT = np.uint64(DRAWS - 1)  # the draw that decides; proposals use those before


class Cooling(NamedTuple):
    """Temperatures as shares of the score, falling geometrically from the first step to the last."""

    hot: float
    cold: float
    steps: int
    price: float  # of over-use: a share of the score for every share of a capacity


@njit(nogil=True, cache=True)
def score(tables: Tables, walk: Walk) -> float:
    """Approximately the seconds of an iteration: the 32-norm of links' busy times and of the slowest task's."""
    largest = _slowest_task(tables, walk)
    for link in range(walk.link_bytes.shape[0]):
        largest = max(largest, walk.link_bytes[link] / tables.link_rates[link])
    if largest == 0:
        return 0.0
    total = (_slowest_task(tables, walk) / largest) ** _POWER
    for link in range(walk.link_bytes.shape[0]):
        total += (walk.link_bytes[link] / tables.link_rates[link] / largest) ** _POWER
    return float(largest * total ** (1.0 / _POWER))


@njit(nogil=True, cache=True)
def anneal(
    tables: Tables, walk: Walk, key: np.uint64, first: int, last: int, cooling: Cooling, proposal: Proposal, best: Array
) -> float:
    """Steps `first` to `last` of a chain; `best` receives the best feasible units, and its score is
    returned (or inf).
    """
    lowest = np.inf
    at = score(tables, walk) * (1 + cooling.price * over_use(tables, walk))
    for step in range(first, last):
        moved = propose(tables, walk, key, step, proposal)
        if moved == 0:
            continue
        beyond = over_use(tables, walk)
        plain = score(tables, walk) if beyond < np.inf else np.inf
        there = plain * (1 + cooling.price * beyond)
        heat = cooling.hot * (cooling.cold / cooling.hot) ** (step / cooling.steps)
        chance = unit(draw(key, np.uint64(step * DRAWS) + _ACCEPT))
        if there <= at or (there < np.inf and chance < np.exp((at - there) / (heat * at))):
            at = there
            if beyond == 0 and plain < lowest:
                lowest = plain
                _copy(walk.units, best)
        else:
            take_back(tables, walk, proposal, moved)
    return lowest


@njit(nogil=True, cache=True, writes=("out",))
def _copy(units: Array, out: Array) -> None:
    """`out[:] = units`, without Numba's check of shapes, which takes longer to be compiled than all that is here."""
    for k in range(len(units)):
        out[k] = units[k]


@njit(nogil=True, cache=True)
def nearby(
    tables: Tables, walk: Walk, key: np.uint64, first: int, last: int, most: float, proposal: Proposal, found: Array
) -> int:
    """The first step from `first` on whose proposal is feasible and scores at most `most`; -1 where none does.

    `found` receives its units; the walk is unchanged.
    """
    for step in range(first, last):
        moved = propose(tables, walk, key, step, proposal)
        if moved == 0:
            continue
        good = over_use(tables, walk) == 0 and score(tables, walk) <= most
        if good:
            _copy(walk.units, found)
        take_back(tables, walk, proposal, moved)
        if good:
            return step
    return -1


@njit(nogil=True, cache=True)
def _slowest_task(tables: Tables, walk: Walk) -> float:
    longest = 0.0
    for number in range(walk.units.shape[0]):
        if walk.units[number] >= 0:
            longest = max(longest, tables.unit_seconds[number] * tables.slowness[walk.units[number]])
    return longest
