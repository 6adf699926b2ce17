"""`omcoflow`: rates inside a coflow so that its flows would end together if it were alone; coflows share in proportion.

The flows of one coflow number and iteration (by default those into one task) are a coflow. Alone, it would take
G = max over links of its bytes on the link / capacity, each flow at bytes / G. With others, every link is divided in
proportion to these rates, and no flow is faster than alone. The source gives no formula for flows that start at
different times: G is that of the whole coflow, known when its first flow starts.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.rate_policy import Case, RatePolicy
from penstock.simulate.sharing.families import PROPORTIONAL
from penstock.simulate.state import Terms


def _terms(case: Case) -> Terms:
    by_coflow = np.argsort(case.coflows, kind="stable").astype(np.int32)
    alone = np.zeros_like(case.amounts.sizes)
    routes = case.routes
    _seconds_alone(
        by_coflow,
        case.coflows,
        case.amounts.sizes,
        routes.flow_path,
        routes.paths,
        routes.path_links,
        routes.links,
        alone,
    )
    weight = np.divide(case.amounts.sizes, alone, out=np.zeros_like(alone), where=alone > 0)
    return Terms(weight, alone, np.zeros((1, 1), np.int64), 1.0)


@njit(nogil=True, cache=True)
def _seconds_alone(
    by_coflow: Array,
    coflows: Array,
    sizes: Array,
    flow_path: Array,
    paths: Array,
    path_links: Array,
    links: Array,
    out: Array,
) -> None:
    """Seconds that a flow's whole coflow would take alone, for every iteration and flow that crosses a link."""
    load = np.zeros(links.shape[0])
    for n in range(sizes.shape[0]):
        first = 0
        while first < by_coflow.shape[0]:
            last, longest = first, 0.0
            while last < by_coflow.shape[0] and coflows[by_coflow[last]] == coflows[by_coflow[first]]:
                path = flow_path[by_coflow[last]]
                if path >= 0:
                    for at in range(paths[path].first, paths[path].last):
                        link = path_links[at]
                        load[link] += sizes[n, by_coflow[last]]
                        longest = max(longest, load[link] / links[link].capacity)
                last += 1
            for k in range(first, last):
                path = flow_path[by_coflow[k]]
                if path >= 0:
                    out[n, by_coflow[k]] = longest
                    for at in range(paths[path].first, paths[path].last):
                        load[path_links[at]] = 0.0
            first = last


OMCOFLOW = RatePolicy("omcoflow", PROPORTIONAL, _terms)
