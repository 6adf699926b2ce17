"""Machines as a plan sees them: their resources, the rates of their links, their racks, and the
device that computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.hardware.cluster import ClusterDocument, Machine

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
) -> Network:
    """Machines in racks; between racks a flow also crosses its own rack's uplink and the other's downlink.

    A rack's uplink carries the sum of its machines' outgoing rates divided by `oversubscription`, its downlink the
    same of the incoming rates. Links are numbered: outgoing of every machine, incoming of every machine, and where
    there is more than one rack, uplinks and downlinks, in the order in which racks are first named.
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
    starts, path_links = _pair_paths(size, rack, len(labels))
    return Network(names, tuple(links), np.concatenate(rates), starts, path_links)


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

    def __post_init__(self) -> None:
        for name, rate in zip(self.names, self.rates, strict=True):
            if not (np.isfinite(rate) and rate > 0):
                raise PenstockError(
                    f"Machine {name} has a link of {rate:g} bytes/s: give its nic_gbps, above 0.",
                    code="value-out-of-range",
                )

    def network(self) -> Network:
        """The network that connects the machines."""
        return racks(self.racks, self.rates, self.rates, self.oversubscription, self.names)

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
        return Machines(
            (*self.names, f"another {self.names[number]}"),
            {name: (*held, held[number]) for name, held in self.capacities.items()},
            (*self.rates, self.rates[number]),
            (*self.racks, self.racks[number]),
            (*self.speeds, self.speeds[number]),
            self.oversubscription,
        )


def machines_of(cluster: ClusterDocument, measured_rate: float) -> Machines:
    """The machines of a cluster file; a link without a rate gets the profile's measured one (bytes/s)."""
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
    )


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
