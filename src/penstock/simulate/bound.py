"""What no schedule can beat, and what `oes` cannot exceed.

Lower bound: the larger of two. (1) The longest chain of items that wait for each other, each as long as it takes alone:
a chain runs one after the other whatever the rates. (2) For every link and every set of flows that cross it: none of
them starts before the earliest of their heads, the link needs their bytes over its capacity, and after the last of them
the shortest of what follows still has to run. The sets looked at are the flows of the iterations from n on, and those
up to n, for every n.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.levels import durations_alone, durations_crowded, heads, tails
from penstock.simulate.rate_policy import Case, terms_of
from penstock.simulate.routes import carried_by
from penstock.simulate.symmetry import MANY, quotient_of


class Pace(NamedTuple):
    """Seconds that an iteration takes in the long run, and that any schedule of the placed workload takes."""

    iteration_s: float
    bound_s: float

    @property
    def gap(self) -> float:
        """How much longer than the bound an iteration takes, as a share of it."""
        return gap_of(self.iteration_s, self.bound_s)


def gap_of(seconds: float, bound: float) -> float:
    """How much longer than the bound, as a share of it; rounding below it is none."""
    return max(0.0, seconds / bound - 1) if bound else 0.0


def lower_bound(case: Case, many: int = MANY) -> float:
    """Seconds that every schedule of the placed workload takes at least.

    From `many` items in all iterations on, one of each that behave alike is looked at.
    """
    if case.amounts.seconds.size + case.amounts.sizes.size >= many:
        quotient = quotient_of(case, terms_of(case))
        case = case if quotient is None else quotient.case
    durations = durations_alone(case.routes, case.amounts, case.slowness)
    before = heads(case.shape, case.order, durations)
    rest = tails(case.shape, case.order, durations)
    longest = float(rest.max())
    routes, tasks = case.routes, case.shape.tasks
    after = rest - durations
    crowded = _link_bound(
        routes.flow_path, routes.flow_copies, routes.paths, routes.path_links, routes.path_copies,
        routes.links["capacity"].copy(), case.amounts.sizes, before[:, tasks:], after[:, tasks:],
    )  # fmt: skip
    return max(longest, float(crowded))


def chain_alone(case: Case) -> float:
    """The longest chain of items, each as long as it takes alone (seconds)."""
    return float(tails(case.shape, case.order, durations_alone(case.routes, case.amounts, case.slowness)).max())


def chain_crowded(case: Case) -> float:
    """The source's critical path: an upper bound of `oes` where every flow follows itself (seconds)."""
    return float(tails(case.shape, case.order, durations_crowded(case.routes, case.amounts, case.slowness)).max())


def largest_degree(case: Case) -> int:
    """The most flows of one iteration that cross one link: how far `oes` can be from the best at most, as a factor."""
    return max(1, int(carried_by(case.routes, np.ones(case.shape.flows)).max(initial=1)))


@njit(nogil=True, cache=True)
def _link_bound(
    flow_path: Array,
    flow_copies: Array,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    capacities: Array,
    sizes: Array,
    before: Array,
    after: Array,
) -> float:
    """The best over all links of the sets {iterations up to n} and {iterations from n}."""
    iterations, links, best = sizes.shape[0], capacities.shape[0], 0.0
    for forwards in (True, False):
        head, tail, work = np.full(links, np.inf), np.full(links, np.inf), np.zeros(links)
        for k in range(iterations):
            n = k if forwards else iterations - 1 - k
            for flow in range(sizes.shape[1]):
                path = flow_path[flow]
                if path < 0 or sizes[n, flow] <= 0:
                    continue
                for at in range(paths[path].first, paths[path].last):
                    link = path_links[at]
                    head[link] = min(head[link], before[n, flow])
                    tail[link] = min(tail[link], after[n, flow])
                    work[link] += sizes[n, flow] / capacities[link] * (flow_copies[flow] * path_copies[at])
            for link in range(links):
                if work[link] > 0:
                    best = max(best, head[link] + work[link] + tail[link])
    return best
