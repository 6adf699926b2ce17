"""One chain of `search`: simulated annealing over placements, scored by the load of links.

A proposal changes few flows, so its score follows from few additions. Machines may be over-used on the way, at a price
that grows with it: packed clusters leave no other way from one packing to the next. Only placements that respect every
limit are kept.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit
from penstock.plan.placement.proposals import DRAWS, Proposal, propose, take_back
from penstock.plan.placement.tables import Tables, Walk, over_use

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
    """About the seconds of an iteration: the 32-norm of links' busy times and of the slowest task's."""
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
    """Steps `first` to `last` of a chain; `best` takes the best feasible units met, its score is returned (or inf)."""
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
                best[:] = walk.units
        else:
            take_back(tables, walk, proposal, moved)
    return lowest


@njit(nogil=True, cache=True)
def nearby(
    tables: Tables, walk: Walk, key: np.uint64, first: int, last: int, most: float, proposal: Proposal, found: Array
) -> int:
    """The first step from `first` on whose proposal is feasible and scores at most `most`; -1 where none does.

    `found` takes its units; the walk stays where it is.
    """
    for step in range(first, last):
        moved = propose(tables, walk, key, step, proposal)
        if moved == 0:
            continue
        good = over_use(tables, walk) == 0 and score(tables, walk) <= most
        if good:
            found[:] = walk.units
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
