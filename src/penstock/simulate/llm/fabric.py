"""The network between simulated devices: NVLink inside a server, NICs, and the switches where they can limit.

Beside the devices there are two places without links of their own: `fabric`, for what comes from or goes to devices
that are not simulated or all of a group at once, and `switch`, the same inside a server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.hashing import key_of, unit_draws
from penstock.simulate.network import Network

_GBPS = 1e9 / 8


@dataclass(frozen=True)
class Servers:
    """Equal servers and the tree of switches above them. Rates in Gbit/s, each way."""

    count: int
    gpus: int = 8
    nvlink_gbps: float = 3200.0  # of a GPU
    nics: int = 8  # rails: each for as many neighbouring GPUs
    nic_gbps: float = 100.0
    topology: Literal["fat-tree", "leaf-spine"] = "fat-tree"
    routing: Literal["spray", "ecmp"] = "spray"
    servers_per_leaf: int = 8
    leaves_per_pod: int = 8  # fat-tree only
    spines: int = 8  # of a leaf: switches above it
    oversubscription: float = 1.0  # of a leaf's uplinks, and of a pod's

    def __post_init__(self) -> None:
        if self.gpus % self.nics and self.nics % self.gpus:
            raise PenstockError(f"{self.gpus} GPUs have no equal parts in {self.nics} NICs: let one divide the other.")


@dataclass(frozen=True)
class Seat:
    """Where a device is: `tensor` GPUs from `first` on of a server."""

    server: int
    first: int
    tensor: int


class Fabric:
    """Links by name, found as they are first crossed."""

    def __init__(self, servers: Servers, seats: Sequence[Seat], whole: bool, seed: int) -> None:
        """`whole`: the seats are all there are, so that switches carry what they do in truth."""
        if servers.routing == "ecmp" and not whole:
            raise PenstockError(
                "Paths by hash (ecmp) collide with those of all devices: set simulate to all, or routing to spray."
            )
        self.servers, self._seats, self._key = servers, seats, key_of(seed, "equal-cost paths")
        self._links: dict[str, float] = {}
        self._here = {server: sum(1 for each in {s.server for s in seats} if self._leaf(each) == self._leaf(server))
                      for server in {seat.server for seat in seats}}  # fmt: skip

    def network(self, names: Sequence[str]) -> Network:
        """Between the devices, called `names`, and then `fabric` and `switch`."""
        size = len(self._seats) + 2
        starts, crossed = [0], []
        for source in range(size):
            for target in range(size):
                crossed += self._path(source, target) if source != target else []
                starts.append(len(crossed))
        numbers = {name: number for number, name in enumerate(self._links)}
        links = np.array([numbers[name] for name in crossed], np.int32)
        rates = np.array(list(self._links.values()))
        return Network((*names, "fabric", "switch"), tuple(self._links), rates, np.array(starts, np.int32), links)

    def _path(self, source: int, target: int) -> list[str]:
        fabric, switch = len(self._seats), len(self._seats) + 1
        if {source, target} == {fabric, switch}:
            return [self._link("between the places without links", 1e9)]
        if source == switch or target == switch:
            return [self._nvlink(source, "out") if target == switch else self._nvlink(target, "in")]
        if target == fabric:
            return [self._nic(source, "out"), *self._up(source)]
        if source == fabric:
            return [*self._down(target), self._nic(target, "in")]
        if self._seats[source].server == self._seats[target].server:
            return [self._nvlink(source, "out"), self._nvlink(target, "in")]
        return [self._nic(source, "out"), *self._between(source, target), self._nic(target, "in")]

    def _between(self, source: int, target: int) -> list[str]:
        """The switches' links between two servers."""
        if self.servers.routing == "ecmp":
            return self._hashed(source, target)
        if self._leaf_of(source) == self._leaf_of(target):
            return []
        up, down = self._up(source), self._down(target)
        return up + down if self._pod_of(source) != self._pod_of(target) else up[:1] + down[-1:]

    def _up(self, device: int) -> list[str]:
        """Uplinks of the leaf and the pod as one link each, where packets are sprayed over all; what never limits is
        left out. Servers that are not simulated have their part of an uplink, and use it alike."""
        if self.servers.oversubscription <= 1 or self.servers.routing == "ecmp":
            return []
        leaf, pod = self._leaf_of(device), self._pod_of(device)
        rate = self._here[self._seats[device].server] * self._server_gbps / self.servers.oversubscription
        out = [self._link(f"leaf {leaf} up", rate)]
        if self.servers.topology == "fat-tree":
            out.append(self._link(f"pod {pod} up", self._pod_gbps(pod)))
        return out

    def _down(self, device: int) -> list[str]:
        return [
            self._link(name.removesuffix("up") + "down", self._links[name] / _GBPS) for name in self._up(device)[::-1]
        ]

    def _hashed(self, source: int, target: int) -> list[str]:
        """One of the equal paths, by the pair."""
        leaves, servers = (self._leaf_of(source), self._leaf_of(target)), self.servers
        if leaves[0] == leaves[1]:
            return []
        drawn = np.empty(2)
        unit_draws(self._key, 2 * (source * len(self._seats) + target), drawn)
        spine, core = (int(each * servers.spines) for each in drawn)
        rate = servers.servers_per_leaf * self._server_gbps / servers.spines / servers.oversubscription
        up, down = (
            self._link(f"leaf {leaf} {way} {spine}", rate) for leaf, way in zip(leaves, ("up", "down"), strict=True)
        )
        pods = (self._pod_of(source), self._pod_of(target))
        if pods[0] == pods[1]:
            return [up, down]
        rate *= servers.leaves_per_pod / servers.spines / servers.oversubscription
        middle = [
            self._link(f"pod {pod} {way} {spine}.{core}", rate) for pod, way in zip(pods, ("up", "down"), strict=True)
        ]
        return [up, *middle, down]

    def _nvlink(self, device: int, way: str) -> str:
        seat = self._seats[device]
        return self._link(f"server {seat.server} GPU {seat.first} NVLink {way}", seat.tensor * self.servers.nvlink_gbps)

    def _nic(self, device: int, way: str) -> str:
        """All the NICs of a device's GPUs as one; where GPUs share a NIC, devices share the link."""
        seat, servers = self._seats[device], self.servers
        rails = sorted({gpu * servers.nics // servers.gpus for gpu in range(seat.first, seat.first + seat.tensor)})
        if servers.nics > servers.gpus:
            each = servers.nics // servers.gpus
            rails = [rail + k for rail in rails for k in range(each)]
        return self._link(f"server {seat.server} NIC {rails[0]} {way}", len(rails) * servers.nic_gbps)

    @property
    def _server_gbps(self) -> float:
        return self.servers.nics * self.servers.nic_gbps

    def _pod_gbps(self, pod: int) -> float:
        here = sum(1 for server in self._here if self._leaf(server) // self.servers.leaves_per_pod == pod)
        return here * self._server_gbps / self.servers.oversubscription**2

    def _leaf(self, server: int) -> int:
        return server // self.servers.servers_per_leaf

    def _leaf_of(self, device: int) -> int:
        return self._leaf(self._seats[device].server)

    def _pod_of(self, device: int) -> int:
        return self._leaf_of(device) // self.servers.leaves_per_pod if self.servers.topology == "fat-tree" else 0

    def _link(self, name: str, gbps: float) -> str:
        self._links.setdefault(name, gbps * _GBPS)
        return name
