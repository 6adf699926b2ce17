"""Machines as a plan sees them: what each has, how fast its links are, who shares a rack, which device computes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.hardware.network import Network, racks

_BYTES = 1e9 / 8
"""In a gigabit."""


@dataclass(frozen=True)
class Machines:
    """All of a cluster, in its order; the first ones hold a part each."""

    names: tuple[str, ...]
    capacities: Mapping[str, tuple[float, ...]]
    """Of every resource, by machine; infinite where nobody has said."""
    rates: tuple[float, ...]
    """Bytes a second, in and out."""
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
        """The same with one link faster."""
        rates = [rate * factor if place == number else rate for place, rate in enumerate(self.rates)]
        return replace(self, rates=tuple(rates))

    def with_more(self, resource: str, number: int, amount: float) -> "Machines":
        """The same with more of something on one machine."""
        held = [each + amount if place == number else each for place, each in enumerate(self.capacities[resource])]
        return replace(self, capacities={**self.capacities, resource: tuple(held)})

    def with_copy(self, number: int) -> "Machines":
        """The same with one more machine like another; it holds no part."""
        return Machines(
            (*self.names, f"another {self.names[number]}"),
            {name: (*held, held[number]) for name, held in self.capacities.items()},
            (*self.rates, self.rates[number]),
            (*self.racks, self.racks[number]),
            (*self.speeds, self.speeds[number]),
            self.oversubscription,
        )


def machines_of(cluster: ClusterDocument, measured_rate: float) -> Machines:
    """What a cluster file says; a link of which it says nothing is as fast as the profile's were (bytes/s)."""
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
    """Refuse what cannot be asked of several machines at once."""
    if device not in ("auto", "cpu", "cuda"):
        raise PenstockError(
            f"Device {device!r} cannot be used on several machines: use auto, cpu or cuda, and set each machine's"
            " `gpus`.",
            code="unsupported-combination",
        )


def chosen_for_plan(device: str, cluster: ClusterDocument) -> tuple[str, float]:
    """`cpu` or `cuda` for all workers of a plan, and the GPUs that each of them needs.

    Where workers go is the plan's to decide: what counts is how many GPUs all machines have together.
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
