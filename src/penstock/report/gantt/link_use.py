"""How full every link was over time, from the rates of all flows."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate import Timeline


def link_use_over_time(timeline: Timeline, slots: int) -> Array:
    """Mean share of each link's capacity in `slots` equal stretches of the makespan, float64 [links, slots]."""
    load, routes = timeline.load, timeline.case.routes
    out = np.zeros((len(timeline.network.capacities), slots))
    if timeline.makespan <= 0 or load.flows == 0:
        return out
    if len(timeline.owner) == 0:
        raise PenstockError(
            "The timeline does not hold the flows' rates: simulate it with segments=True.", code="option-missing"
        )
    # Within one instant the last change counts, so the sort has to be stable.
    changes = timeline.changes[np.argsort(timeline.changes["serial"], kind="stable")]
    _fill(
        np.ascontiguousarray(timeline.starts[:, load.tasks :]),
        np.ascontiguousarray(timeline.ends[:, load.tasks :]),
        timeline.owner,
        timeline.weight,
        changes["serial"].copy(),
        changes["when"].copy(),
        changes["speed"].copy(),
        routes.flow_path,
        routes.paths["first"].copy(),
        routes.paths["last"].copy(),
        routes.path_links,
        slots / timeline.makespan,
        out,
    )
    return out * (slots / timeline.makespan) / timeline.network.capacities[:, None]


@njit(nogil=True, cache=True)
def _fill(
    starts: Array,
    ends: Array,
    owner: Array,
    weight: Array,
    serials: Array,
    whens: Array,
    speeds: Array,
    flow_path: Array,
    firsts: Array,
    lasts: Array,
    path_links: Array,
    scale: float,
    out: Array,
) -> None:
    """Add the bytes of every flow's stretches of constant rate to the slots (`scale` of them a second) of its links."""
    iterations, flows = starts.shape
    for n in range(iterations):
        for flow in range(flows):
            path = flow_path[flow]
            start, end = starts[n, flow], ends[n, flow]
            if path < 0 or not end > start:
                continue
            share = weight[min(n, weight.shape[0] - 1), min(flow, weight.shape[1] - 1)]
            at = np.searchsorted(serials, owner[n * flows + flow])
            while at < len(serials) and serials[at] == owner[n * flows + flow] and whens[at] < end:
                last = at + 1 == len(serials) or serials[at + 1] != serials[at]
                until = end if last else min(end, whens[at + 1])
                since = max(start, whens[at])
                if until > since and speeds[at] > 0:
                    for k in range(firsts[path], lasts[path]):
                        _spread(out[path_links[k]], since, until, speeds[at] * share, scale)
                at += 1


@njit(nogil=True, cache=True)
def _spread(row: Array, since: float, until: float, rate: float, scale: float) -> None:
    """Add a stretch's bytes to the slots it touches."""
    last = row.shape[0] - 1
    for slot in range(min(last, int(since * scale)), min(last, int(until * scale)) + 1):
        lower, upper = max(since, slot / scale), min(until, (slot + 1) / scale)
        if upper > lower:
            row[slot] += rate * (upper - lower)
