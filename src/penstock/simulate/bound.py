"""What no schedule can beat, and what `oes` cannot exceed.

Lower bound: the larger of two. (1) The longest chain of items that wait for each other, each as long as it takes alone:
a chain runs one after the other whatever the rates. (2) For every link and every set of flows that cross it: none of
them starts before the earliest of their heads, the link needs their bytes over its capacity, and after the last of them
the shortest of what follows still has to run. The sets looked at are the flows of the iterations from n on, and those
up to n, for every n.
"""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.simulate.levels import durations_alone, durations_crowded, heads, tails
from penstock.simulate.rates.policy import Case
from penstock.simulate.state import Routes


def lower_bound(case: Case) -> float:
    """Seconds that every schedule of the placed workload takes at least."""
    durations = durations_alone(case.routes, case.amounts, case.slowness)
    before = heads(case.shape, case.order, durations)
    rest = tails(case.shape, case.order, durations)
    longest = float(rest.max())
    routes, tasks = case.routes, case.shape.tasks
    after = rest - durations
    for link in range(len(routes.links)):
        longest = max(
            longest,
            _link_bound(
                _crosses(routes, link),
                routes.links["capacity"][link],
                case.amounts.sizes,
                before[:, tasks:],
                after[:, tasks:],
            ),
        )
    return longest


def chain_alone(case: Case) -> float:
    """The longest chain of items, each as long as it takes alone (seconds)."""
    return float(tails(case.shape, case.order, durations_alone(case.routes, case.amounts, case.slowness)).max())


def chain_crowded(case: Case) -> float:
    """The source's critical path: an upper bound of `oes` where every flow follows itself (seconds)."""
    return float(tails(case.shape, case.order, durations_crowded(case.routes, case.amounts, case.slowness)).max())


def largest_degree(case: Case) -> int:
    """The most flows of one iteration that cross one link: how far `oes` can be from the best at most, as a factor."""
    return max(1, *(int(_crosses(case.routes, link).sum()) for link in range(len(case.routes.links))))


def _crosses(routes: Routes, link: int) -> Array:
    """Whether each flow crosses a link."""
    paths = routes.link_paths[routes.links["first"][link] : routes.links["last"][link]]
    return np.isin(routes.flow_path, paths)


@njit(nogil=True, cache=True)
def _link_bound(crosses: Array, capacity: float, sizes: Array, before: Array, after: Array) -> float:
    """The best of the sets {iterations up to n} and {iterations from n}."""
    iterations, best = sizes.shape[0], 0.0
    for forwards in (True, False):
        head, tail, work = np.inf, np.inf, 0.0
        for k in range(iterations):
            n = k if forwards else iterations - 1 - k
            for flow in range(sizes.shape[1]):
                if crosses[flow] and sizes[n, flow] > 0:
                    head = min(head, before[n, flow])
                    tail = min(tail, after[n, flow])
                    work += sizes[n, flow] / capacity
            if work > 0:
                best = max(best, head + work + tail)
    return best
