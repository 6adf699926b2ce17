"""Below the fluid: what a flow takes beside its bytes at its fair rate, as terms that the engine adds to its end.

A flow leaves its links when its last byte has been sent as a fluid, and ends later by the sum of these:

- Latency: the delay of every hop, and one packet at the rate of each but the slowest.
- Slow start, of a path that is new or was idle for longer than the timeout: with the mean rate r that the flow had,
  round trip T and a window W that doubles, T - W / r for every round in which that is above 0 and bytes are left. A new
  connection of TCP takes one more round trip; credits for all that is left come back after the first.
- Timeouts, of TCP alone: where the windows of the flows under way into a port exceed its buffer and what a round trip
  carries, a flow waits for a timeout with a probability that `_risk` has.

A sum below a hundredth of the flow's time as a fluid is left out.
"""

from dataclasses import replace

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.hardware.machines import Network
from penstock.kernels import inner, njit
from penstock.simulate.state import AT_WORK, Routes, Transport, TransportState, push_task

_LEAST = 0.01
"""The share of a flow's time below which its delay is left out."""
_ALWAYS = 64
"""Rounds in which a window grows without end."""
outlined = njit(nogil=True, cache=True, error_model="numpy")
"""Kernels that are not copied into the engine's: most runs do not call them, and need not carry them."""
HASHES = 32
"""Seeds over which results are said as median and 95th percentile."""
WINDOW, ROUNDS, HANDSHAKES, TIMEOUT, BUFFER = range(5)
_WINDOWS, _BEARABLE, _RISK, _AGAIN = 2.0, 4.0, 0.05, 4
"""First windows that count for each flow into a port, times that they may exceed its room, the risk of a timeout for
each further time, and the power of that risk which is the risk of a second one: fitted to incasts in network namespaces
(docs/measurements/simulation.md)."""


def transport_of(network: Network, routes: Routes) -> Transport:
    """The terms of a network's transport for the paths of a placed workload."""
    options = network.transport
    assert options is not None, "flows are fluids"
    serial, count = options.packet_bytes / network.capacities, len(routes.paths)
    if network.lanes is not None:
        # A packet crosses one of the equal-cost links.
        serial = np.where(network.lanes >= 0, options.uplinks, 1) * serial[: len(network.lanes)]
    hops = routes.path_links < len(serial)
    path, seconds = routes.crossing_paths[hops], serial[routes.path_links[hops]]
    slowest = np.zeros(count)
    np.maximum.at(slowest, path, seconds)
    packets = np.bincount(path, weights=seconds, minlength=count)
    delay = np.bincount(path, minlength=count) * (options.hop_us * 1e-6)
    tcp = options.kind == "tcp"
    # What leaves a machine waits in the machine, and links of equal cost have a port each.
    ports = network.pieces
    ports[: len(network.machines)] = 0
    if network.lanes is not None:
        ports[: len(network.lanes)][network.lanes >= 0] = 0
    return Transport(
        latency=delay + packets - slowest,
        round_trip=2 * delay,
        window=float(options.window * options.packet_bytes),
        rounds=_ALWAYS if tcp else 1,
        handshakes=1.0 if tcp else 0.0,
        timeout=options.timeout_ms * 1e-3,
        buffer=np.inf if options.buffer_kb is None else options.buffer_kb * 1e3,
        ports=ports,
        seed=options.seed,
    )


def hashed_again(network: Network) -> list[Network]:
    """The network under other hashes and draws; empty where it has neither equal-cost links nor timeouts."""
    options = network.transport
    if options is None or (options.uplinks == 1 and options.buffer_kb is None):
        return []
    return [replace(network, transport=options.model_copy(update={"seed": options.seed + k})) for k in range(HASHES)]


def transport_state(transport: Transport, routes: Routes, flows: int) -> TransportState:
    """The kernels' terms and memory for a run of so many flows."""
    drops = np.isfinite(transport.buffer)
    return TransportState(
        transport.latency,
        transport.round_trip,
        np.array([transport.window, transport.rounds, transport.handshakes, transport.timeout, transport.buffer]),
        transport.ports,
        unit_draws(key_of(transport.seed, "timeouts"), flows) if drops else np.empty(0),
        np.zeros(flows),
        np.zeros(flows),
        np.full((len(routes.paths), 2), -np.inf),
        np.zeros(len(routes.links), np.int64),
    )


@outlined
def flow_begins(
    now: float,
    instance: int,
    path: int,
    copies: int,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    begun: Array,
    idle: Array,
    used: Array,
    crowd: Array,
) -> None:
    """Remember when a flow begins and how long its path was idle: not at all where another is under way."""
    begun[instance] = now
    if used[path, 0] < now:
        used[path, 1] = used[path, 0]
        used[path, 0] = now
    idle[instance] = now - used[path, 1]
    for at in range(paths[path].first, paths[path].last):
        crowd[path_links[at]] += copies * path_copies[at]


@outlined
def flows_end(
    now: float,
    first: int,
    stacked: int,
    task_count: int,
    flow_count: int,
    sizes: Array,
    flow_path: Array,
    flow_copies: Array,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    links: Array,
    latency: Array,
    round_trip: Array,
    terms: Array,
    ports: Array,
    luck: Array,
    begun: Array,
    idle: Array,
    used: Array,
    crowd: Array,
    late: Array,
    ended: Array,
    ends: Array,
    tasks: Array,
    numbers: Array,
) -> int:
    """Postpone the ends of ended[first:stacked], whose last bytes are sent; returns how many items still end now."""
    items, kept = task_count + flow_count, first
    for k in range(first, stacked):
        n, flow = ended[k] // items, ended[k] % items - task_count
        instance, path, size = n * flow_count + flow, flow_path[flow], sizes[n, flow]
        took, delay = now - begun[instance], latency[path]
        delay += _slow_start(size, took, round_trip[path], idle[instance], terms)
        if luck.shape[0] > 0:
            risk = 0.0
            for at in range(paths[path].first, paths[path].last):
                link = path_links[at]
                if ports[link] > 0:
                    carried = links[link].capacity / ports[link] * round_trip[path]
                    risk = max(risk, _risk(crowd[link] / ports[link], size, carried, terms))
            delay += _stalled(took, risk, luck[instance], terms[TIMEOUT])
        # Read above for all that end now, so that each is part of the crowd.
        begun[instance] = delay if delay >= _LEAST * took else 0.0
    for k in range(first, stacked):
        n, flow = ended[k] // items, ended[k] % items - task_count
        instance, path = n * flow_count + flow, flow_path[flow]
        delay = begun[instance]
        used[path, :] = np.maximum(used[path, :], now + delay)
        if late.shape[0] > 0:
            late[n, flow] = delay
        for at in range(paths[path].first, paths[path].last):
            crowd[path_links[at]] -= flow_copies[flow] * path_copies[at]
        if delay > 0:
            push_task(ends, tasks, numbers[AT_WORK], now + delay, -1 - instance)
            numbers[AT_WORK] += 1
        else:
            ended[kept] = ended[k]
            kept += 1
    return kept


@inner
def _slow_start(size: float, took: float, round_trip: float, idle: float, terms: Array) -> float:
    """Seconds that a window which grows from its first size takes beyond the flow's mean rate."""
    if idle <= terms[TIMEOUT]:
        return 0.0
    seconds = terms[HANDSHAKES] * round_trip if idle == np.inf else 0.0
    window, sent, rounds = terms[WINDOW], terms[WINDOW], 0
    while rounds < terms[ROUNDS] and sent < size and window * took < round_trip * size:
        seconds += round_trip - window * took / size
        window, rounds = 2 * window, rounds + 1
        sent += window
    return seconds


@inner
def _risk(crowd: float, size: float, carried: float, terms: Array) -> float:
    """The probability that a flow into a port with so many under way waits for a timeout."""
    windows = crowd * min(size, _WINDOWS * terms[WINDOW])
    excess = windows / (terms[BUFFER] + carried) - _BEARABLE
    return 1 - np.exp(-_RISK * excess) if excess > 0 and crowd > 1 else 0.0


@inner
def _stalled(took: float, risk: float, luck: float, timeout: float) -> float:
    """Seconds that a flow's timeouts add.

    It stalls halfway on average, and what it has left is sent quickly then, as the others are through.
    """
    if luck >= risk:
        return 0.0
    timeouts = 2 if luck < risk**_AGAIN else 1
    return float(max(0.0, timeouts * timeout - took / 2))
