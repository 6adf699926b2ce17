"""The paths that the flows of a placed workload take."""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.simulate.network import Network
from penstock.simulate.state import LINK, PATH, Routes
from penstock.simulate.workload import Workload


def routes_of(load: Workload, network: Network, placement: Array) -> Routes:
    """Number the machine pairs that flows run between, and list the links of each and the paths of each link."""
    machines, flows = len(network.machines), load.flows
    flow_path, pairs = np.empty(flows, np.int32), np.empty(flows, np.int32)
    known = np.full(machines * machines, -1, np.int32)
    count, crossings = _number_pairs(
        load.sources, load.targets, placement, machines, network.path_starts, known, flow_path, pairs
    )
    paths, links = np.empty(count, PATH), np.empty(len(network.capacities), LINK)
    path_links, link_paths = np.empty(crossings, np.int32), np.empty(crossings, np.int32)
    _lay_out(pairs, network.path_starts, network.path_links, network.capacities, paths, path_links, links, link_paths)
    return Routes(flow_path, paths, path_links, links, link_paths)


@njit(nogil=True, cache=True)
def _number_pairs(
    sources: Array,
    targets: Array,
    placement: Array,
    machines: int,
    starts: Array,
    known: Array,
    flow_path: Array,
    pairs: Array,
) -> tuple[int, int]:
    """Number pairs by first use; how many there are, and how many links they cross in all."""
    count, crossings = 0, 0
    for flow in range(sources.shape[0]):
        pair = np.int64(placement[sources[flow]]) * machines + placement[targets[flow]]
        crossed = starts[pair + 1] - starts[pair]
        if crossed > 0 and known[pair] < 0:
            known[pair] = count
            pairs[count] = pair
            count += 1
            crossings += crossed
        flow_path[flow] = known[pair]
    return count, crossings


@njit(nogil=True, cache=True)
def _lay_out(
    pairs: Array,
    starts: Array,
    pair_links: Array,
    capacities: Array,
    paths: Array,
    path_links: Array,
    links: Array,
    link_paths: Array,
) -> None:
    for link in range(links.shape[0]):
        links[link].capacity = capacities[link]
        links[link].last = 0
    filled = 0
    for path in range(paths.shape[0]):
        paths[path].first = filled
        paths[path].full = np.inf
        for at in range(starts[pairs[path]], starts[pairs[path] + 1]):
            link = pair_links[at]
            path_links[filled] = link
            filled += 1
            links[link].last += 1
            paths[path].full = min(paths[path].full, capacities[link])
        paths[path].last = filled
    filled = 0
    for link in range(links.shape[0]):
        links[link].first = filled
        filled += links[link].last
        links[link].last = links[link].first
    for path in range(paths.shape[0]):
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            link_paths[links[link].last] = path
            links[link].last += 1
