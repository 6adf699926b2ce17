"""The engine's state: arrays of records, and tuples of arrays that only the outermost kernel takes; the paths that the
flows of a placed workload take.

Kernels below the outermost take arrays one by one: Numba counts references of a tuple's arrays at every call.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, key_of
from penstock.hardware.machines import Network
from penstock.kernels import inner, njit
from penstock.simulate.workload import Amounts, Workload, successors

# The ways of sharing that policies choose from. Kernels that take functions cannot be cached between processes, so they
# get a number.
PROPORTIONAL, PRIORITY, BY_ARRIVAL, BY_TIME_LEFT = range(4)

# Flows that always have the same rate, those of one path and one rank, are a group.
GROUP = np.dtype(
    [
        ("clock", np.float64),  # service per flow so far
        ("since", np.float64),  # seconds: when `clock` was right
        ("speed", np.float64),  # service per flow and second
        ("rank", np.int64),
        ("serial", np.int64),  # number among all groups there ever were
        ("root", np.int32),  # instance of the flow that ends first, -1 where there is none
        ("count", np.int32),  # flows
        ("path", np.int32),
        ("after", np.int32),  # next group of the same path, or next free one
        ("changed", np.int32),  # 1: flows came or went since links were last shared
        ("shared", np.int32),  # flows when links were last shared
    ]
)
# Flow f of iteration n is instance n * flows + f.
FLOW = np.dtype(
    [
        ("key", np.float64),  # the group's clock when it ends; or its place in a queue
        ("left", np.float64),  # bytes left (queues only)
        ("child", np.int32),
        ("sibling", np.int32),
    ]
)
PATH = np.dtype(
    [
        ("full", np.float64),  # bytes/s when nothing else flows
        ("first", np.int32),  # its links are path_links[first:last]
        ("last", np.int32),
        ("groups", np.int32),  # its first group, -1 where there is none
        ("member", np.int32),  # its group, or queue, that is listed among those in order; else -1
        ("filling", np.int32),  # its group while the rank of that is filled; else -1
        ("spare", np.int32),  # up to half a cache line
    ]
)
LINK = np.dtype(
    [
        ("capacity", np.float64),  # bytes/s
        ("load", np.float64),  # weight of the flows on it; or what is left of its capacity
        ("first", np.int32),  # the paths that cross it are those of the crossings link_crossings[first:last]
        ("last", np.int32),
        ("active", np.int32),  # paths with flows that cross it: the first so many of these
        ("crossing", np.int32),  # flows
        ("dirty", np.int32),  # 1: its load changed since links were last shared
        ("padding", np.int32),  # up to a multiple of 8 bytes
    ]
)
CHANGE = np.dtype([("when", np.float64), ("speed", np.float64), ("serial", np.int64)])

_ROWS = 24  # ranks whose beginning is remembered; more are seldom served at a time

ACTIVE, FREE, SERIALS, DIRTY, CHANGES, AT_WORK, STACKED, READY, TIMED, DONE, TOUCHED, ROWS = range(12)


class Shape(NamedTuple):
    """A workload as arrays for the kernels."""

    tasks: int
    flows: int
    starts: Array  # int32 [items + 1]: where an item's followers begin
    followers: Array  # int32
    lags: Array  # int32
    waits: Array  # int32 [largest lag + 1, items]: what an item of iteration 0, 1, ... waits for; then like the last
    overlap: int  # iterations of which one flow can be under way at once; 0: any number


class Routes(NamedTuple):
    """The paths that a placement uses, renumbered, and the links they cross.

    A crossing is an entry of `path_links`: one path on one link. The engine reorders `link_crossings` within each link,
    paths with flows first, and keeps `crossing_places` in step. The copies are 1 except where one path, flow or link
    represents several of its kind (see `symmetry`).
    """

    flow_path: Array  # int32 [flows]: -1 within one machine
    paths: Array  # PATH
    path_links: Array  # int32 [crossings]
    links: Array  # LINK
    crossing_paths: Array  # int32 [crossings]: the path of each
    link_crossings: Array  # int32 [crossings]: crossings by link
    crossing_places: Array  # int32 [crossings]: where each stands in `link_crossings`
    path_copies: Array  # int32 [crossings]: paths like this one on each link like this one
    flow_copies: Array  # int32 [flows]: flows like this one on each path like its own

    def links_on(self, path: Any) -> Array:
        """The links that a path of `paths` crosses."""
        return self.path_links[path["first"] : path["last"]]


class Terms(NamedTuple):
    """A policy's terms of flow f in iteration n: entry [n, f]; an array of one column or row holds for all."""

    weight: Array  # float64: share of a link relative to others (proportional sharing)
    size: Array  # float64: what is served, bytes or another measure in which the group's clock runs
    rank: Array  # int64: strict priority, smaller first
    ceiling: float  # the most that a group's clock runs per second (proportional sharing)


class Transport(NamedTuple):
    """What flows take beside their bytes, by path and flow; empty arrays where flows are fluids (see `transport`)."""

    latency: Array  # float64 [paths]: seconds until what was sent last arrives
    round_trip: Array  # float64 [paths]: seconds
    window: float  # bytes that are sent before the first answer
    rounds: int  # round trips in which the window grows
    handshakes: float  # round trips before the first byte of a new connection
    timeout: float  # seconds
    buffer: float  # bytes that wait at a port; infinite where none is too small
    ports: Array  # float64 [links]: pieces in which flows are counted at a switch's port; 0: no such port
    seed: int  # of who times out


class TransportState(NamedTuple):
    """A transport's terms for the kernels, and what they remember of the flows of one run."""

    latency: Array  # float64 [paths], as above; empty: flows are fluids
    round_trip: Array  # float64 [paths]
    terms: Array  # float64: window, rounds, handshakes, timeout, buffer
    ports: Array  # float64 [links], as above
    luck: Array  # float64 [iterations * flows]: in [0, 1), where ports may overflow
    begun: Array  # float64 [iterations * flows]: seconds
    idle: Array  # float64 [iterations * flows]: seconds that its path was idle before it; infinite: never used
    used: Array  # float64 [paths, 2]: when a path was last in use, and when before that
    crowd: Array  # int64 [links]: flows under way


_NONE = np.empty(0)
FLUID = TransportState(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, np.empty((0, 2)), np.empty(0, np.int64))
"""Of a network without a transport: flows are fluids."""


class EngineScratch(NamedTuple):
    """Memory for one run, reused by the next of the same workload and length."""

    groups: Array  # GROUP
    flows: Array  # FLOW [iterations * flows]
    tree: Array  # float64: next end of every group
    order: Array  # int32 [groups]: the first group of every path in use, by rank; or queues by their heads
    touched: Array  # int32 [groups]: groups, or queues, that flows came to or left since links were last shared
    spare: Array  # float64 [rows, links]: bytes/s; row 0 is the capacities
    rows: Array  # int64 [rows, 2]: see `rates.priority`
    closed: Array  # int64 [links]: likewise
    dirty: Array  # int32 [links + 1]
    ends: Array  # float64: binary heap of running tasks
    tasks: Array  # int32: iteration * tasks + task, or -1 - instance of a flow whose last byte has been sent
    waiting: Array  # int32 [iterations, items]
    ended: Array  # int64: stack of iteration * items + item
    ready: Array  # int64: likewise
    numbers: Array  # int64: the counters named above
    clock: Array  # float64 [1]: seconds simulated so far


class TimelineRecord(NamedTuple):
    """What is recorded; empty arrays for what was not asked for."""

    starts: Array  # float64 [iterations, items]
    ends: Array  # float64 [iterations, items]
    owner: Array  # int64 [iterations * flows]: serial of a flow's group
    changes: Array  # CHANGE
    late: Array  # float64 [iterations, flows]: seconds from a flow's last byte as a fluid to its end; or empty


def shape_of(load: Workload, iterations: int) -> Shape:
    """The arrays of a workload for kernels that simulate so many iterations."""
    return shape_from(load.tasks, load.flows, load.before, load.after, load.lags, iterations, load.followers)


def shape_from(
    tasks: int,
    flows: int,
    before: Array,
    after: Array,
    lags: Array,
    iterations: int,
    listed: tuple[Array, Array, Array] | None = None,
) -> Shape:
    """The arrays of tasks and flows, numbered in this order, with their dependencies, `listed` by what comes before."""
    items = tasks + flows
    starts, followers, follower_lags = successors(items, before, after, lags) if listed is None else listed
    rows = min(int(lags.max(initial=0)) + 1, iterations)
    waits = np.zeros((rows, items), np.int32)
    for lag in range(rows):
        waits[lag:] += np.bincount(after[lags == lag], minlength=items).astype(np.int32)
    own = (before == after) & (before >= tasks) & (lags > 0)
    alone = np.count_nonzero(np.bincount(before[own], minlength=1)) == flows
    overlap = int(lags[own].max(initial=1)) if alone else 0
    return Shape(tasks, flows, starts, followers, follower_lags, waits, overlap)


def scratch_for(load: Shape, iterations: int, links: int, late: bool = False) -> EngineScratch:
    """Room for so many iterations of a workload on a network of so many links; flows may end late (see `transport`)."""
    together = min(iterations, load.overlap) if load.overlap else iterations
    items = load.tasks + load.flows
    # There are never more groups or paths than flows at a time; groups that became empty in an event are kept to its
    # end.
    groups = max(1, 2 * load.flows * together)
    timed = load.tasks + (load.flows if late else 0)
    return EngineScratch(
        groups=np.empty(groups, GROUP),
        flows=np.empty(iterations * load.flows, FLOW),
        tree=tree_for(groups),
        order=np.empty(groups, np.int32),
        touched=np.empty(groups, np.int32),
        spare=np.empty((_ROWS, links)),
        rows=np.empty((_ROWS, 2), np.int64),
        closed=np.empty(links, np.int64),
        dirty=np.empty(links + 1, np.int32),
        ends=np.empty(iterations * timed),
        tasks=np.empty(iterations * timed, np.int32),
        waiting=np.empty((iterations, items), np.int32),
        ended=np.empty(iterations * items, np.int64),
        ready=np.empty(iterations * items, np.int64),
        numbers=np.empty(12, np.int64),
        clock=np.empty(1),
    )


def record_for(load: Shape, iterations: int, times: bool, changes: int, late: bool = False) -> TimelineRecord:
    """Room for starts and ends when asked for, for so many changes of speed, and for what flows take `late`."""
    rows, items = iterations if times else 0, load.tasks + load.flows
    return TimelineRecord(
        np.full((rows, items), np.nan),
        np.full((rows, items), np.nan),
        np.full(iterations * load.flows if changes else 0, -1, np.int64),
        np.empty(changes, CHANGE),
        np.zeros((rows if late else 0, load.flows)),
    )


# The interface of rate policies: a way of sharing, and terms of every flow that are fixed before anything runs.


class Case(NamedTuple):
    """What a policy may use."""

    shape: Shape
    order: Array  # the workload's items so that each comes after what it waits for
    coflows: Array  # int32 [flows]
    routes: Routes
    amounts: Amounts
    slowness: Array  # float64 [tasks]
    task_kinds: tuple[str, ...]
    kinds: tuple[str, ...]  # of flows
    microbatches: Array  # int32 [flows]
    layers: Array  # int32 [flows]
    transport: Transport | None = None


class RatePolicy(NamedTuple):
    """A name, one of the families of sharing, and the terms of a case's flows."""

    name: str
    family: int
    terms: Callable[[Case], Terms]
    orders: Callable[[Case], list[Array]] | None = None  # ranks that it chose from, where it did


def terms_of(case: Case, weight: Array | None = None, size: Array | None = None, rank: Array | None = None) -> Terms:
    """Terms with defaults: weight 1, size in bytes, one rank, no ceiling."""
    return Terms(
        np.ones((1, 1)) if weight is None else weight,
        case.amounts.sizes if size is None else size,
        np.zeros((1, 1), np.int64) if rank is None else rank,
        np.inf,
    )


def by_rank(
    name: str, ranks: Callable[[Case], Array], orders: Callable[[Case], list[Array]] | None = None
) -> RatePolicy:
    """A policy of strict priority by int64 [iterations or 1, flows] ranks, smaller first; max-min among equals."""
    return RatePolicy(name, PRIORITY, lambda case: terms_of(case, rank=ranks(case)), orders)


# The queues of the engine: a pairing heap of flows per group, a heap of running tasks, a tree of groups' next ends.
#
# A pairing heap is stored in the records of flow instances (key, child, sibling), so that any number of heaps share one
# allocation and merging costs one comparison.

NONE = -1


@inner
def meld(a: int, b: int, flows: Array) -> int:
    """Merge two heaps, given by their roots; equal keys are ordered by instance, so that nothing depends on history."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    if flows[b].key < flows[a].key or (flows[b].key == flows[a].key and b < a):
        a, b = b, a
    flows[b].sibling = flows[a].child
    flows[a].child = b
    return a


@inner
def without_root(root: int, flows: Array) -> int:
    """The heap without its root: pair the children, then merge the pairs from the last back."""
    pairs, each = NONE, int(flows[root].child)
    while each != NONE:
        first, second = each, int(flows[each].sibling)
        flows[first].sibling = NONE
        joined, each = first, NONE
        if second != NONE:
            each = int(flows[second].sibling)
            flows[second].sibling = NONE
            joined = meld(first, second, flows)
        flows[joined].sibling = pairs
        pairs = joined
    out = NONE
    while pairs != NONE:
        rest = int(flows[pairs].sibling)
        flows[pairs].sibling = NONE
        out = meld(out, pairs, flows)
        pairs = rest
    return int(out)


@inner
def set_leaf(tree: Array, leaf: int, value: float) -> None:
    """Put a group's next end into the tree; updates only as far up as a minimum changes."""
    node = (tree.shape[0] >> 1) + leaf
    tree[node] = value
    node >>= 1
    while node >= 1:
        least = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == least:
            break
        tree[node] = least
        node >>= 1


@inner
def least_leaf(tree: Array) -> int:
    """The group whose end is next."""
    leaves = tree.shape[0] >> 1
    node = 1
    while node < leaves:
        node *= 2
        if tree[node + 1] < tree[node]:
            node += 1
    return int(node - leaves)


@inner
def push_task(ends: Array, tasks: Array, size: int, end: float, task: int) -> None:
    """Add a running task to the binary heap of `size` tasks."""
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if ends[parent] <= end:
            break
        ends[k], tasks[k] = ends[parent], tasks[parent]
        k = parent
    ends[k], tasks[k] = end, task


@inner
def pop_task(ends: Array, tasks: Array, size: int) -> int:
    """Remove the task that ends first from the binary heap of `size` tasks."""
    out, size = tasks[0], size - 1
    end, task = ends[size], tasks[size]
    k = 0
    while 2 * k + 1 < size:
        least = 2 * k + 1
        if least + 1 < size and ends[least + 1] < ends[least]:
            least += 1
        if end <= ends[least]:
            break
        ends[k], tasks[k] = ends[least], tasks[least]
        k = least
    ends[k], tasks[k] = end, task
    return int(out)


def tree_for(leaves: int) -> Array:
    """An empty tree for so many groups, float64; index 1 is the root."""
    return np.full(2 * leaves_for(leaves), np.inf)


@njit(nogil=True, cache=True)
def leaves_for(groups: int) -> int:
    """The power of two that has room for so many groups."""
    leaves = 1
    while leaves < groups:
        leaves *= 2
    return leaves


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
