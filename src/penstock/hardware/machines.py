"""Machines as a plan sees them: their resources, the rates of their links, their racks, and the
device that computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.hardware.cluster import Background, ClusterDocument, Machine, TransportOptions

# The network that flows cross: links with a capacity, and the path between every two machines.


@dataclass(frozen=True, eq=False)
class Network:
    """L links and, for every ordered pair of M machines, the links that a flow between them crosses.

    The path from machine a to machine b is `path_links[path_starts[a * M + b] : path_starts[a * M + b + 1]]`. Within
    one machine the path is empty: such a flow is free and instant.
    """

    machines: tuple[str, ...]
    link_names: tuple[str, ...]
    capacities: Array  # float64 [L]: bytes per second
    path_starts: Array  # int32 [M * M + 1]
    path_links: Array  # int32
    transport: TransportOptions | None = None  # None: flows are fluids
    lanes: Array | None = None
    """int32 [B]: the first of the `transport.uplinks` equal-cost links that each of the first B consists of, or -1.

    Flows are hashed onto these further links (`penstock.simulate.state`); the paths here name only the first B.
    """
    free_cores: Array | None = None  # float64 [M]: cores that other tenants leave; None: tasks never lack any

    def __post_init__(self) -> None:
        size = len(self.machines)
        if size == 0:
            raise PenstockError("The network has no machines: give at least one.", code="missing-data")
        if len(set(self.machines)) != size:
            raise PenstockError("Two machines of the network have the same name: give each its own.", code="duplicate")
        if len(self.capacities) != len(self.link_names) or len(self.path_starts) != size * size + 1:
            raise PenstockError(
                "The network's arrays do not match its machines and links: build it with star or racks.",
                code="shape-mismatch",
            )
        bad = np.flatnonzero(~(np.isfinite(self.capacities) & (self.capacities > 0)))
        if len(bad):
            raise PenstockError(
                f"Link {self.link_names[bad[0]]} has a rate of {self.capacities[bad[0]]:g} bytes/s:"
                " give a finite rate above 0.",
                code="value-out-of-range",
            )
        empty = np.flatnonzero(np.diff(self.path_starts) == 0)
        cut = empty[empty // size != empty % size]
        if len(cut):
            source, target = divmod(int(cut[0]), size)
            raise PenstockError(
                f"No link leads from {self.machines[source]} to {self.machines[target]}: give every pair a path.",
                code="missing-data",
            )

    def path(self, source: int, target: int) -> Array:
        """Numbers of the links from one machine to another."""
        pair = source * len(self.machines) + target
        return self.path_links[self.path_starts[pair] : self.path_starts[pair + 1]]

    def as_fluid(self) -> "Network":
        """The same network without a transport and without links that flows are hashed onto."""
        links = len(self.capacities) if self.lanes is None else len(self.lanes)
        names, capacities = self.link_names[:links], self.capacities[:links]
        return replace(self, link_names=names, capacities=capacities, transport=None, lanes=None)

    @property
    def pieces(self) -> Array:
        """Into how many pieces each link counts a flow, float64 [L]: hashed flows cross some links with a part."""
        out = np.ones(len(self.capacities))
        if self.lanes is not None and self.transport is not None:
            out[len(self.lanes) :] = self.transport.paths
        return out

    def machine(self, name: str) -> int:
        """The number of the machine with this name."""
        if name not in self.machines:
            raise PenstockError(
                f"No machine is called {name!r}: the network has {', '.join(self.machines)}.", code="unknown-name"
            )
        return self.machines.index(name)


def star(
    incoming: Sequence[float] | Array, outgoing: Sequence[float] | Array, machines: Sequence[str] | None = None
) -> Network:
    """Machines on one switch that never limits: a flow crosses the sender's and the receiver's NIC (bytes/s each)."""
    return racks([0] * len(incoming), incoming, outgoing, machines=machines)


def racks(
    rack_of: Sequence[int | str],
    incoming: Sequence[float] | Array,
    outgoing: Sequence[float] | Array,
    oversubscription: float = 1.0,
    machines: Sequence[str] | None = None,
    transport: TransportOptions | None = None,
    taken: Sequence[float] | Array = (),
    taken_up: Mapping[str, float] | None = None,
    free_cores: Sequence[float] | Array | None = None,
) -> Network:
    """Machines in racks; between racks a flow also crosses its own rack's uplink and the other's downlink.

    A rack's uplink carries the sum of its machines' outgoing rates divided by `oversubscription`, its downlink the
    same of the incoming rates. Links are numbered: outgoing of every machine, incoming of every machine, and where
    there is more than one rack, uplinks and downlinks, in the order in which racks are first named.

    Other tenants have `taken` so many bytes/s of every machine's link and, by rack, of an uplink, each way.
    """
    size = len(incoming)
    if len(outgoing) != size or len(rack_of) != size:
        raise PenstockError(
            f"The network has {size} incoming rates, {len(outgoing)} outgoing rates and {len(rack_of)} racks' numbers:"
            " give one of each for every machine.",
            code="shape-mismatch",
        )
    if not oversubscription > 0:
        raise PenstockError(
            f"An oversubscription of {oversubscription:g} is not a ratio: give a number above 0.",
            code="value-out-of-range",
        )
    names = tuple(machines) if machines is not None else tuple(f"m{number}" for number in range(size))
    labels = list(dict.fromkeys(rack_of))
    rack = np.array([labels.index(label) for label in rack_of], np.int64)
    links = [f"{name} out" for name in names] + [f"{name} in" for name in names]
    rates = [np.asarray(outgoing, np.float64), np.asarray(incoming, np.float64)]
    if len(labels) > 1:
        links += [f"rack {label} up" for label in labels] + [f"rack {label} down" for label in labels]
        rates += [np.bincount(rack, weights=each, minlength=len(labels)) / oversubscription for each in rates]
    capacities = _left(np.concatenate(rates), [str(label) for label in labels], taken, taken_up or {})
    starts, path_links = _pair_paths(size, rack, len(labels))
    found = Network(
        names, tuple(links), capacities, starts, path_links, transport,
        free_cores=None if free_cores is None else np.asarray(free_cores, np.float64),
    )  # fmt: skip
    return found if transport is None or transport.uplinks == 1 else _with_lanes(found, transport.uplinks)


def _left(
    capacities: Array, racks: Sequence[str], taken: Sequence[float] | Array, taken_up: Mapping[str, float]
) -> Array:
    """What other tenants leave of the links of machines and racks."""
    unknown = [name for name in taken_up if name not in racks or len(racks) < 2]
    if unknown:
        raise PenstockError(
            f"uplink_background_gbps names rack {unknown[0]!r}, which has no uplink: there are"
            f" {', '.join(racks) if len(racks) > 1 else 'no two racks'}.",
            code="unknown-name",
        )
    if len(taken):
        capacities[: 2 * len(taken)] -= np.tile(taken, 2)
    for name, rate in taken_up.items():
        ups = len(capacities) - 2 * len(racks) + racks.index(name)
        if rate >= capacities[[ups, ups + len(racks)]].min():
            raise PenstockError(
                f"The uplink of rack {name} carries {capacities[ups] / _BYTES:g} Gbit/s, and other tenants take"
                f" {rate / _BYTES:g}: leave some in uplink_background_gbps.",
                code="value-out-of-range",
            )
        capacities[[ups, ups + len(racks)]] -= rate
    return capacities


def _with_lanes(network: Network, count: int) -> Network:
    """The network with every rack's uplink and downlink made of so many links of equal cost."""
    size, links = len(network.machines), len(network.capacities)
    if links == 2 * size:
        raise PenstockError(
            f"transport.uplinks is {count}, and no two machines are in different racks: name the rack of every machine,"
            " or leave it out.",
            code="invalid-document",
        )
    of_racks = np.arange(2 * size, links)
    lanes = np.full(links, -1, np.int32)
    lanes[of_racks] = links + count * (of_racks - 2 * size)
    return replace(
        network,
        link_names=(
            *network.link_names,
            *(f"{name} {lane + 1}" for name in network.link_names[2 * size :] for lane in range(count)),
        ),
        capacities=np.concatenate([network.capacities, np.repeat(network.capacities[of_racks] / count, count)]),
        lanes=lanes,
    )


def _pair_paths(size: int, rack: Array, count: int) -> tuple[Array, Array]:
    """CSR over ordered pairs: sender's NIC, uplink, downlink, receiver's NIC; the middle two between racks only."""
    source, target = np.divmod(np.arange(size * size), size)
    across = rack[source] != rack[target]
    crossed = np.stack([source, 2 * size + rack[source], 2 * size + count + rack[target], size + target], axis=1)
    taken = np.stack([source != target, across, across, source != target], axis=1)
    starts = np.zeros(size * size + 1, np.int32)
    np.cumsum(taken.sum(axis=1), out=starts[1:])
    return starts, crossed[taken].astype(np.int32)


_BYTES = 1e9 / 8
"""Bytes per second of one gigabit per second."""


@dataclass(frozen=True)
class Machines:
    """All machines of a cluster, in its order; the first ones hold a part each."""

    names: tuple[str, ...]
    capacities: Mapping[str, tuple[float, ...]]
    """The amount of every resource by machine; infinite where the cluster file gives none."""
    rates: tuple[float, ...]
    """Bytes per second, both in and out."""
    racks: tuple[str, ...]
    speeds: tuple[float, ...]
    oversubscription: float = 1.0
    transport: TransportOptions | None = None
    taken: tuple[float, ...] = ()
    """Bytes per second, each way, that other tenants take; empty: none."""
    taken_up: Mapping[str, float] = field(default_factory=dict)
    """By rack, the same of its uplink."""
    taken_cores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, rate in zip(self.names, self.rates, strict=True):
            if not (np.isfinite(rate) and rate > 0):
                raise PenstockError(
                    f"Machine {name} has a link of {rate:g} bytes/s: give its nic_gbps, above 0.",
                    code="value-out-of-range",
                )

    def network(self) -> Network:
        """The network that connects the machines."""
        free = np.array(self.capacities["cores"]) - self.taken_cores if any(self.taken_cores) else None
        return racks(
            self.racks, self.rates, self.rates, self.oversubscription, self.names,
            self.transport, self.taken, self.taken_up, free,
        )  # fmt: skip

    def alone(self) -> "Machines":
        """A copy without other tenants."""
        return replace(self, taken=(), taken_up={}, taken_cores=())

    def with_rate(self, number: int, factor: float) -> "Machines":
        """A copy with the link of machine `number` faster by `factor`."""
        rates = [rate * factor if place == number else rate for place, rate in enumerate(self.rates)]
        return replace(self, rates=tuple(rates))

    def with_speed(self, number: int, factor: float) -> "Machines":
        """A copy in which machine `number` computes `factor` times as fast."""
        speeds = [speed * factor if place == number else speed for place, speed in enumerate(self.speeds)]
        return replace(self, speeds=tuple(speeds))

    def with_more(self, resource: str, number: int, amount: float) -> "Machines":
        """A copy with `amount` more of a resource on one machine."""
        held = [each + amount if place == number else each for place, each in enumerate(self.capacities[resource])]
        return replace(self, capacities={**self.capacities, resource: tuple(held)})

    def with_copy(self, number: int) -> "Machines":
        """A copy with one more machine like machine `number`; it holds no part."""

        def more(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*values, values[number]) if values else values

        return replace(
            self,
            names=(*self.names, f"another {self.names[number]}"),
            capacities={name: more(held) for name, held in self.capacities.items()},
            rates=more(self.rates),
            racks=more(self.racks),
            speeds=more(self.speeds),
            taken=more(self.taken),
            taken_cores=more(self.taken_cores),
        )


def machines_of(cluster: ClusterDocument, measured_rate: float) -> Machines:
    """The machines of a cluster file; a link without a rate gets the profile's measured one (bytes/s)."""
    tenants = [machine.background for machine in cluster.machines]
    return Machines(
        names=tuple(machine.name for machine in cluster.machines),
        capacities={
            "cores": tuple(inf if machine.cores is None else machine.cores for machine in cluster.machines),
            "memory_gb": tuple(inf if each.memory_gb is None else each.memory_gb for each in cluster.machines),
            "gpus": tuple(float(machine.gpus) for machine in cluster.machines),
        },
        rates=tuple(_rate(machine, measured_rate) for machine in cluster.machines),
        racks=tuple(_racks(cluster)),
        speeds=tuple(machine.speed for machine in cluster.machines),
        oversubscription=cluster.oversubscription,
        transport=cluster.transport,
        taken=tuple(each * _BYTES for each in taken_of(tenants, "gbps")),
        taken_up={rack: gbps * _BYTES for rack, gbps in cluster.uplink_background_gbps.items()},
        taken_cores=taken_of(tenants, "cores"),
    )


_NOTICED = 0.1
"""The share of a link by which a measured rate must be below it: headers and pauses take up to that."""


def with_estimated_tenants(cluster: ClusterDocument, carried: Mapping[str, float]) -> tuple[ClusterDocument, list[str]]:
    """The cluster with background load on links that `carried` less than described in a run (bytes/s), and notes on it.

    A `background` in the cluster file stands. What a link carried only bounds what it can from below: a run that asked
    for less looks the same as tenants.
    """
    machines, notes = list[Machine](), list[str]()
    for machine in cluster.machines:
        rate, nic = carried.get(machine.name, 0.0) / _BYTES, machine.nic_gbps
        if machine.background is None and nic is not None and 0 < rate < (1 - _NOTICED) * nic:
            machine = machine.model_copy(update={"background": Background(gbps=round(nic - rate, 6))})
            notes.append(
                f"The link of {machine.name} carried at most {rate:.3g} of its {nic:g} Gbit/s in the profile's run: the"
                " rest counts as other tenants'. If the run asked for no more, say so with background: {}."
            )
        elif carried and not rate and machine.background is None:
            notes.append(f"The profile's run had no machine {machine.name}: whether others use its link is not known.")
        machines.append(machine)
    return cluster.model_copy(update={"machines": machines}), notes


def taken_of(tenants: Sequence[Background | None], name: str) -> tuple[float, ...]:
    """What other tenants take of every machine, `cores` or `gbps`; empty where they take nothing."""
    found = tuple(0.0 if each is None else float(getattr(each, name)) for each in tenants)
    return found if any(found) else ()


def _racks(cluster: ClusterDocument) -> list[str]:
    """The rack of every machine; one for all where none is named."""
    without = [machine.name for machine in cluster.machines if machine.rack is None]
    if 0 < len(without) < len(cluster.machines):
        raise PenstockError(
            f"Machine {without[0]} has no rack, but others have one: set `rack` for every machine, or for none.",
            code="invalid-document",
        )
    return [machine.rack or "" for machine in cluster.machines]


def _rate(machine: Machine, measured: float) -> float:
    if machine.nic_gbps is not None:
        return machine.nic_gbps * _BYTES
    if measured <= 0:
        raise PenstockError(
            f"Machine {machine.name} has no nic_gbps in the cluster file: add the speed of its link.",
            code="option-missing",
        )
    return measured


def check_device(device: str) -> None:
    """Refuse a device that cannot be used on several machines."""
    if device not in ("auto", "cpu", "cuda"):
        raise PenstockError(
            f"Device {device!r} cannot be used on several machines: use auto, cpu or cuda, and set each machine's"
            " `gpus`.",
            code="unsupported-combination",
        )


def chosen_for_plan(device: str, cluster: ClusterDocument) -> tuple[str, float]:
    """`cpu` or `cuda` for all workers of a plan, and the GPUs that each of them needs.

    The plan decides where workers are placed: what counts is how many GPUs all machines have together.
    """
    check_device(device)
    gpus, workers = sum(machine.gpus for machine in cluster.machines), cluster.workers
    if device == "cpu" or (device == "auto" and gpus < workers):
        return "cpu", 0.0
    if not gpus:
        raise PenstockError(
            "Device cuda cannot be planned for: no machine of the cluster has a GPU. Set each machine's `gpus`, or set"
            " device to cpu.",
            code="device-not-found",
        )
    if gpus < workers and not cluster.share_gpus:
        raise PenstockError(
            f"Device cuda cannot be planned for: the cluster has {workers} workers and {gpus} GPUs. Ask for fewer"
            " workers, or set `share_gpus: true`.",
            code="infeasible",
        )
    return "cuda", 1 / max(1, -(-workers // gpus))
