"""The paths that the flows of a placed workload take."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, key_of
from penstock.hardware.machines import Network
from penstock.kernels import njit
from penstock.simulate.state import LINK, PATH, Routes
from penstock.simulate.workload import Workload


def routes_of(load: Workload, network: Network, placement: Array) -> Routes:
    """Number the machine pairs that flows run between, and list the links of each and the paths of each link."""
    if network.lanes is not None:
        return _hashed_routes(load, network, placement, network.lanes)
    machines, flows = len(network.machines), load.flows
    flow_path, pairs = np.empty(flows, np.int32), np.empty(flows, np.int32)
    known = np.full(machines * machines, -1, np.int32)
    count, crossings = _number_pairs(
        load.sources, load.targets, placement, machines, network.path_starts, known, flow_path, pairs
    )
    paths, path_links = np.empty(count, PATH), np.empty(crossings, np.int32)
    _lay_out(pairs, network.path_starts, network.path_links, paths, path_links)
    return crossed_routes(flow_path, paths, path_links, network.capacities)


def crossed_routes(
    flow_path: Array,
    paths: Array,
    path_links: Array,
    capacities: Array,
    path_copies: Array | None = None,
    flow_copies: Array | None = None,
) -> Routes:
    """Routes whose `paths` have their `first` and `last`: everything else follows from `path_links` and capacities."""
    crossings, links = len(path_links), np.empty(len(capacities), LINK)
    crossing_paths, link_crossings, places = (np.empty(crossings, np.int32) for _ in range(3))
    _cross(paths, path_links, capacities, links, crossing_paths, link_crossings, places)
    return Routes(
        flow_path, paths, path_links, links, crossing_paths, link_crossings, places,
        np.ones(crossings, np.int32) if path_copies is None else path_copies,
        np.ones(len(flow_path), np.int32) if flow_copies is None else flow_copies,
    )  # fmt: skip


def carried_by(routes: Routes, flow_amounts: Array) -> Array:
    """The sum of `flow_amounts` [flows] over the flows that cross each link, float64 [links]."""
    travels = routes.flow_path >= 0
    on_path = np.bincount(routes.flow_path[travels], weights=flow_amounts[travels], minlength=len(routes.paths))
    carried = on_path[routes.crossing_paths] * routes.path_copies
    return np.bincount(routes.path_links, weights=carried, minlength=len(routes.links))


def _hashed_routes(load: Workload, network: Network, placement: Array, lanes: Array) -> Routes:
    """Routes over links of equal cost: each connection, of two tasks, has `paths` hashes that name one lane each.

    A lane's capacity and what crosses it count in pieces: a flow with k of its n hashes on a lane is k copies of its
    path there, and the lane carries n times its rate of them. The n-th lanes of two links lead to one another.
    """
    options = network.transport
    assert options is not None, "a network with lanes has a transport"
    machines, places = len(network.machines), placement.astype(np.int64)
    pairs = places[load.sources] * machines + places[load.targets]
    lengths = np.diff(network.path_starts)
    of_pair = np.repeat(np.arange(len(lengths)), lengths)
    spread = np.bincount(of_pair[lanes[network.path_links] >= 0], minlength=len(lengths)) > 0
    chosen = np.zeros((load.flows, options.uplinks), np.int64)
    connections = load.sources.astype(np.uint64) * np.uint64(load.tasks) + load.targets.astype(np.uint64)
    hashed, key = np.flatnonzero(spread[pairs]), key_of(options.seed, "equal-cost paths")
    for k in range(options.paths):
        counters = connections[hashed] * np.uint64(options.paths) + np.uint64(k)
        np.add.at(chosen, (hashed, _lanes_of(key, counters, options.uplinks)), 1)
    moved = np.flatnonzero(lengths[pairs] > 0)
    rows, of_row = np.unique(np.column_stack([pairs, chosen])[moved], axis=0, return_inverse=True)
    flow_path = np.full(load.flows, -1, np.int32)
    flow_path[moved] = of_row.reshape(-1)
    crossed, copies = list[Array](), list[Array]()
    for pair, *counts in rows.tolist():
        plain = network.path_links[network.path_starts[pair] : network.path_starts[pair + 1]]
        taken, count = np.flatnonzero(counts), np.array(counts, np.int64)
        ways = [lanes[link] + taken for link in plain if lanes[link] >= 0]
        crossed.append(np.concatenate([plain, *ways]))
        copies.append(np.concatenate([np.ones(len(plain), np.int64), *[count[taken]] * len(ways)]))
    paths = np.empty(len(rows), PATH)
    ends = np.cumsum([len(each) for each in crossed])
    paths["first"], paths["last"] = ends - [len(each) for each in crossed], ends
    out = crossed_routes(
        flow_path,
        paths,
        np.concatenate([np.empty(0), *crossed]).astype(np.int32),
        network.capacities * network.pieces,
        np.concatenate([np.empty(0), *copies]).astype(np.int32),
    )
    np.minimum.at(paths["full"], out.crossing_paths, out.links["capacity"][out.path_links] / out.path_copies)
    return out


@njit(nogil=True, cache=True)
def _lanes_of(key: np.uint64, connections: Array, lanes: int) -> Array:
    """A lane for every connection, int64."""
    out = np.empty(connections.shape[0], np.int64)
    for k in range(out.shape[0]):
        out[k] = below(draw(key, connections[k]), lanes)
    return out


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
    """Number pairs by first use; returns how many there are, and how many links they cross in all."""
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
def _lay_out(pairs: Array, starts: Array, pair_links: Array, paths: Array, path_links: Array) -> None:
    """Number the crossings path by path."""
    filled = 0
    for path in range(paths.shape[0]):
        paths[path].first = filled
        for at in range(starts[pairs[path]], starts[pairs[path] + 1]):
            path_links[filled] = pair_links[at]
            filled += 1
        paths[path].last = filled


@njit(nogil=True, cache=True)
def _cross(
    paths: Array,
    path_links: Array,
    capacities: Array,
    links: Array,
    crossing_paths: Array,
    link_crossings: Array,
    places: Array,
) -> None:
    """Fill in the paths' full rates, the links, and the crossings of every link in order of path."""
    for link in range(links.shape[0]):
        links[link].capacity = capacities[link]
        links[link].last = 0
        links[link].active = 0
    for path in range(paths.shape[0]):
        paths[path].full = np.inf
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            crossing_paths[at] = path
            links[link].last += 1
            paths[path].full = min(paths[path].full, capacities[link])
    filled = 0
    for link in range(links.shape[0]):
        links[link].first = filled
        filled += links[link].last
        links[link].last = links[link].first
    for at in range(path_links.shape[0]):
        link = path_links[at]
        places[at] = links[link].last
        link_crossings[places[at]] = at
        links[link].last += 1
