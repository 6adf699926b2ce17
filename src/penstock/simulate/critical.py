"""The chain that set the pace: from the last end back through what was waited for.

Everything starts the moment the last thing it waits for ends, so the chain has no gaps, and its steps add up to the
makespan. A flow on it may have taken longer than it would have alone: that is its wait, named by the busiest link it
crosses.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.dependency_order import successors
from penstock.simulate.levels import durations_alone
from penstock.simulate.timeline import Timeline


class CriticalStep(NamedTuple):
    """One item on the critical path."""

    name: str
    kind: str
    iteration: int
    start: float  # seconds
    end: float  # seconds
    waited: float  # seconds longer than with its links to itself
    waited_for: str  # the busiest link it crossed; empty where it did not wait


def critical_path(timeline: Timeline) -> list[CriticalStep]:
    """The steps from the first start to the last end, in time's order; items without duration are left out."""
    load, case = timeline.load, timeline.case
    alone = durations_alone(case.routes, case.amounts, case.slowness)
    first, befores, lags = successors(load.items, load.after, load.before, load.lags)
    kinds = [*load.task_kinds, *load.flow_kinds]
    steps: list[CriticalStep] = []
    n, item = np.unravel_index(int(np.argmax(timeline.ends)), timeline.ends.shape)
    while True:
        start, end = float(timeline.starts[n, item]), float(timeline.ends[n, item])
        if end > start:
            # Rounding of the times themselves is no wait.
            waited = end - start - float(alone[n, item])
            waited = waited if waited > 1e-9 * end else 0.0
            link = _busiest_link(timeline, int(item) - load.tasks) if waited else ""
            steps.append(CriticalStep(load.item_name(int(item)), kinds[item], int(n), start, end, waited, link))
        waited_for = np.arange(first[item], first[item + 1])
        waited_for = waited_for[lags[waited_for] <= n]
        if len(waited_for) == 0 or start <= 0:
            return steps[::-1]
        last = waited_for[int(np.argmax(timeline.ends[n - lags[waited_for], befores[waited_for]]))]
        n, item = n - lags[last], befores[last]


def _busiest_link(timeline: Timeline, flow: int) -> str:
    routes = timeline.case.routes
    path = routes.paths[routes.flow_path[flow]]
    crossed: Array = routes.path_links[path["first"] : path["last"]]
    return timeline.network.link_names[int(crossed[np.argmax(timeline.link_use[crossed])])]
