"""The network between simulated devices: NVLink inside a server, NICs, and the switches where they can limit.

Beside the devices there are images of some of them, with their links, as devices in other servers see them: for traffic
to a device that is not simulated, and that the device represents. And there are virtual nodes without links of their
own, for traffic to or from all of a group at once: one for every distance, which decides the switches on the way.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.hashing import document_key, unit_draws
from penstock.hardware.machines import Network

_GBPS = 1e9 / 8
PLACES = ("switch", "leaf", "pod", "fabric")
SERVER, LEAF, POD, ANYWHERE = range(4)
"""The distance of two devices: in one server, under one leaf, in one pod (or under one layer of spines), or more."""


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
            raise PenstockError(
                f"gpus={self.gpus} and nics={self.nics}: one must be divisible by the other.",
                code="unsupported-combination",
            )

    def apart(self, one: int, other: int) -> int:
        """The distance of two servers; the largest one where switches cannot limit."""
        if one == other:
            return SERVER
        if not self.limiting:
            return ANYWHERE
        if self.leaf(one) == self.leaf(other):
            return LEAF
        return POD if self.pod(one) == self.pod(other) else ANYWHERE

    @property
    def limiting(self) -> bool:
        """Whether the links of switches can limit although packets are sprayed over all."""
        return self.oversubscription > 1 and self.routing == "spray"

    @property
    def gbps(self) -> float:
        """The rate of all NICs of a server together, in Gbit/s."""
        return self.nics * self.nic_gbps

    def leaf(self, server: int) -> int:
        """The leaf that a server is under."""
        return server // self.servers_per_leaf

    def pod(self, server: int) -> int:
        """The pod that a server is in; spines above all leaves are one."""
        return self.leaf(server) // self.leaves_per_pod if self.topology == "fat-tree" else 0


@dataclass(frozen=True)
class Seat:
    """Where a device is: `tensor` GPUs from `first` on of a server."""

    server: int
    first: int
    tensor: int


class Image(NamedTuple):
    """A device that represents one in another server."""

    device: int
    server: int


class _Ways(NamedTuple):
    """The links out of a device, or into it, by number."""

    nvlink: int
    nic: int
    switches: tuple[int, ...]  # the leaf's and the pod's, as far as they limit, seen from the device


class Fabric:
    """Links by name, created when they are first crossed."""

    def __init__(self, servers: Servers, seats: Sequence[Seat], images: Sequence[Image], seed: int) -> None:
        """Without images, the seats are all devices, and switches carry exactly their traffic."""
        if servers.routing == "ecmp" and images:
            raise PenstockError(
                "routing ecmp needs the paths of all devices: set simulate to all, or routing to spray.",
                code="unsupported-combination",
            )
        self.servers, self._seats, self._images = servers, seats, images
        self._key = document_key(seed, "equal-cost paths")
        self._where = [seat.server for seat in seats] + [image.server for image in images]
        # Servers that are not simulated use their share of an uplink likewise; the share of unused servers is free.
        here = sorted({seat.server for seat in seats}) if images else range(servers.count)
        self._per_leaf, self._per_pod = Counter(map(servers.leaf, here)), Counter(map(servers.pod, here))
        self._links: dict[str, int] = {}
        self._rates: list[float] = []

    def network(self, names: Sequence[str]) -> Network:
        """The network between the devices, called `names`, then their images, and then the virtual nodes."""
        size = len(self._where) + len(PLACES)
        starts, crossed = [0], list[int]()
        for source in range(size):
            for target in range(size):
                crossed += self._path(source, target) if source != target else ()
                starts.append(len(crossed))
        links = np.array(crossed, np.int32)
        machines = (*names, *(f"{names[image.device]} elsewhere" for image in self._images), *PLACES)
        return Network(machines, tuple(self._links), np.array(self._rates), np.array(starts, np.int32), links)

    def _path(self, source: int, target: int) -> Sequence[int]:
        devices = len(self._where)
        if source >= devices and target >= devices:
            return [self._link("between the places without links", 1e9)]
        if target >= devices:
            return self._half(self._out[source], target - devices)
        if source >= devices:
            return self._half(self._into[target], source - devices)[::-1]
        apart = self.servers.apart(self._where[source], self._where[target])
        out, into = self._half(self._out[source], apart), self._half(self._into[target], apart)[::-1]
        return [*out, *self._hashed(source, target), *into] if self.servers.routing == "ecmp" else [*out, *into]

    def _half(self, ways: _Ways, apart: int) -> Sequence[int]:
        """The links from a device to the top of its route, or from there to it."""
        if apart == SERVER:
            return (ways.nvlink,)
        return (ways.nic, *ways.switches[: apart - LEAF])

    @cached_property
    def _out(self) -> list[_Ways]:
        return self._all_ways("out", "up")

    @cached_property
    def _into(self) -> list[_Ways]:
        return self._all_ways("in", "down")

    def _all_ways(self, way: str, direction: str) -> list[_Ways]:
        found = [self._ways(seat, way, direction) for seat in self._seats]
        return found + [found[image.device] for image in self._images]

    def _ways(self, seat: Seat, way: str, direction: str) -> _Ways:
        servers = self.servers
        name = f"server {seat.server} GPU {seat.first} NVLink {way}"
        nvlink = self._link(name, seat.tensor * servers.nvlink_gbps)
        switches = self._switches(seat.server, direction) if servers.limiting else ()
        return _Ways(nvlink, self._nic(seat, way), switches)

    def _switches(self, server: int, direction: str) -> tuple[int, ...]:
        """The links of the leaf and the pod as one each, where packets are sprayed over all."""
        servers = self.servers
        leaf, pod = servers.leaf(server), servers.pod(server)
        rate = self._per_leaf[leaf] * servers.gbps / servers.oversubscription
        found = self._link(f"leaf {leaf} {direction}", rate)
        if servers.topology != "fat-tree":
            return (found,)
        rate = self._per_pod[pod] * servers.gbps / servers.oversubscription**2
        return found, self._link(f"pod {pod} {direction}", rate)

    def _hashed(self, source: int, target: int) -> list[int]:
        """One of the equal paths through the switches, chosen by a hash of the pair."""
        servers, ends = self.servers, (self._seats[source].server, self._seats[target].server)
        leaves, pods = tuple(map(servers.leaf, ends)), tuple(map(servers.pod, ends))
        if leaves[0] == leaves[1]:
            return []
        drawn = unit_draws(self._key, 2, 2 * (source * len(self._seats) + target))
        spine, core = (int(each * servers.spines) for each in drawn)
        rate = servers.servers_per_leaf * servers.gbps / servers.spines / servers.oversubscription
        up, down = (
            self._link(f"leaf {leaf} {way} {spine}", rate) for leaf, way in zip(leaves, ("up", "down"), strict=True)
        )
        if pods[0] == pods[1]:
            return [up, down]
        rate *= servers.leaves_per_pod / servers.spines / servers.oversubscription
        middle = [
            self._link(f"pod {pod} {way} {spine}.{core}", rate) for pod, way in zip(pods, ("up", "down"), strict=True)
        ]
        return [up, *middle, down]

    def _nic(self, seat: Seat, way: str) -> int:
        """All the NICs of a device's GPUs as one; where GPUs share a NIC, devices share the link."""
        servers = self.servers
        rails = sorted({gpu * servers.nics // servers.gpus for gpu in range(seat.first, seat.first + seat.tensor)})
        many = len(rails) * max(1, servers.nics // servers.gpus)
        return self._link(f"server {seat.server} NIC {rails[0]} {way}", many * servers.nic_gbps)

    def _link(self, name: str, gbps: float) -> int:
        if name not in self._links:
            self._links[name] = len(self._links)
            self._rates.append(gbps * _GBPS)
        return self._links[name]
