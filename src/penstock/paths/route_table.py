"""Application and hardware as arrays: which resources every path goes over, one after the other, and for how long.

A resource is a node or a link. A visit holds one of a node's places, or the link, for its service time; the message is
at the next resource a further delay later. Times are in microseconds.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.kernels import borrowed, inner
from penstock.paths.documents import ApplicationDocument, HardwareDocument, StepDocument

NETWORK, COMMON = 1, 2
"""Flags of a visit: its resource is between hosts; all paths of the request type go over its resource."""


class RouteArrays(NamedTuple):
    """The arrays that kernels read. Path p belongs to one request type; its visits are first[p] : first[p + 1]."""

    type_first: Array  # int32 [types + 1]: numbers of each type's paths
    first: Array  # int32 [paths + 1]
    resource: Array  # int32 [visits]
    service: Array  # float64 [visits]: microseconds that the resource is held
    delay: Array  # float64 [visits]: microseconds from the end of service to the next resource
    jitter: Array  # float64 [visits, 2]: least and largest further delay
    flags: Array  # int32 [visits]: NETWORK, COMMON
    capacity: Array  # int32 [resources]
    label: Array  # int32 [paths]: paths of one name have one label
    base: Array  # float64 [paths]: at both hosts, without queues
    end_to_end: Array  # float64 [paths]: network included, jitter at its mean
    distinct: Array  # float64 [paths]: of the resources that not all paths of the type go over
    toll: Array  # float64 [paths]: LEO's communication toll: compute times and bytes / bandwidth at both hosts, summed
    toll_per_place: Array  # float64 [paths]: service at both hosts, message rates included, divided by capacities
    depends: Array  # int32 [types]: number of the dependency in DEPENDENCIES
    writes: Array  # bool [types]


@inner
def borrowed_routes(routes: RouteArrays) -> RouteArrays:
    """The same arrays without an owner, for kernels (see `penstock.kernels`)."""
    return RouteArrays(
        borrowed(routes.type_first), borrowed(routes.first), borrowed(routes.resource), borrowed(routes.service),
        borrowed(routes.delay), borrowed(routes.jitter), borrowed(routes.flags), borrowed(routes.capacity),
        borrowed(routes.label), borrowed(routes.base), borrowed(routes.end_to_end), borrowed(routes.distinct),
        borrowed(routes.toll), borrowed(routes.toll_per_place), borrowed(routes.depends), borrowed(routes.writes),
    )  # fmt: skip


DEPENDENCIES = ("none", "address", "message")


@dataclass(frozen=True)
class RouteTable:
    """`RouteArrays`, and the names of its numbers."""

    routes: RouteArrays
    types: tuple[str, ...]
    paths: tuple[str, ...]
    """By number; two types may have paths of one name."""
    resources: tuple[str, ...]

    def paths_of(self, type_number: int) -> range:
        """Numbers of the paths of a request type."""
        first = self.routes.type_first
        return range(int(first[type_number]), int(first[type_number + 1]))

    def type_of(self, path: int) -> int:
        """The request type that a path belongs to."""
        return int(np.searchsorted(self.routes.type_first, path, side="right")) - 1

    def visits_of(self, path: int) -> range:
        """Numbers of a path's visits."""
        return range(int(self.routes.first[path]), int(self.routes.first[path + 1]))

    def visited(self, path: int) -> list[str]:
        """Names of the resources that a path goes over, in order."""
        return [self.resources[self.routes.resource[visit]] for visit in self.visits_of(path)]


@dataclass(frozen=True)
class _Visit:
    resource: str
    service: float
    work: float
    """What the printed toll counts: the service, without a limit by messages."""
    delay: float = 0.0
    jitter: tuple[float, float] = (0.0, 0.0)
    network: bool = False


def build_routes(application: ApplicationDocument, hardware: HardwareDocument) -> RouteTable:
    """The table of an application on a hardware model; an error where a path needs what the hardware lacks."""
    resources = (*hardware.nodes, *hardware.links)
    number = {name: place for place, name in enumerate(resources)}
    visits: list[_Visit] = []
    type_first, first, names, common = [0], [0], list[str](), list[bool]()
    for request_name, request in application.requests.items():
        where = f"{application.name}: requests.{request_name}.paths"
        paths = [
            [visit for step in steps for visit in _step_visits(step, hardware, f"{where}.{name}")]
            for name, steps in request.paths.items()
        ]
        shared = set.intersection(*({visit.resource for visit in path} for path in paths))
        for name, path in zip(request.paths, paths, strict=True):
            visits += path
            common += [visit.resource in shared for visit in path]
            first.append(len(visits))
            names.append(name)
        type_first.append(len(names))
    labels = {name: place for place, name in enumerate(dict.fromkeys(names))}
    flags = [NETWORK * visit.network + COMMON * alike for visit, alike in zip(visits, common, strict=True)]
    arrays: dict[str, Array] = {
        "type_first": np.array(type_first, np.int32),
        "first": np.array(first, np.int32),
        "resource": np.array([number[visit.resource] for visit in visits], np.int32),
        "service": np.array([visit.service for visit in visits], np.float64),
        "delay": np.array([visit.delay for visit in visits], np.float64),
        "jitter": np.array([visit.jitter for visit in visits], np.float64).reshape(-1, 2),
        "flags": np.array(flags, np.int32),
        "capacity": np.array([node.capacity for node in hardware.nodes.values()] + [1] * len(hardware.links), np.int32),
        "label": np.array([labels[name] for name in names], np.int32),
        "depends": np.array([DEPENDENCIES.index(each.depends) for each in application.requests.values()], np.int32),
        "writes": np.array([each.writes for each in application.requests.values()], np.bool_),
    }
    times = _path_times(arrays, np.array([visit.work for visit in visits]))
    return RouteTable(RouteArrays(**arrays, **times), tuple(application.requests), tuple(names), resources)


def _step_visits(step: StepDocument, hardware: HardwareDocument, where: str) -> list[_Visit]:
    if step.go is None:
        assert step.compute is not None, "checked when it was read"
        _check_node(step.compute, hardware, where)
        return [_Visit(step.compute, step.us, step.us)]
    return [visit for start, end in pairwise(step.go) for visit in _hop_visits(start, end, step.bytes, hardware, where)]


def _hop_visits(start: str, end: str, size: int, hardware: HardwareDocument, where: str) -> list[_Visit]:
    for node in (start, end):
        _check_node(node, hardware, where)
    links = hardware.route(start, end)
    if links is None:
        raise PenstockError(
            f"{where}: {hardware.name} has no route '{start} > {end}': add it to the hardware file's routes.",
            code="mismatched-inputs",
        )
    visits = []
    for name in links:
        link = hardware.links[name]
        sending = size * 8e-3 / link.gbps
        service = max(sending, 0.0 if link.mops is None else 1.0 / link.mops)
        visits.append(_Visit(name, service, sending, link.latency_us, link.jitter_us, link.network))
    return visits


def _check_node(node: str, hardware: HardwareDocument, where: str) -> None:
    if node not in hardware.nodes:
        raise PenstockError(
            f"{where}: {hardware.name} has no node {node!r}{nearest(node, hardware.nodes)}", code="mismatched-inputs"
        )


def _path_times(arrays: dict[str, Array], work: Array) -> dict[str, Array]:
    """The times of every path that follow from its visits, without queues."""
    time = arrays["service"] + arrays["delay"] + arrays["jitter"].mean(axis=1)
    at_hosts, apart = (arrays["flags"] & NETWORK) == 0, (arrays["flags"] & COMMON) == 0
    per_place = arrays["service"] / arrays["capacity"][arrays["resource"]]
    return {
        "base": _summed(time * at_hosts, arrays["first"]),
        "end_to_end": _summed(time, arrays["first"]),
        "distinct": _summed(time * apart, arrays["first"]),
        "toll": _summed(work * at_hosts, arrays["first"]),
        "toll_per_place": _summed(per_place * at_hosts, arrays["first"]),
    }


def _summed(values: Array, first: Array) -> Array:
    """Sums over each path's visits, added from the left as the simulator adds them."""
    return np.array([sum(values[start:end].tolist()) for start, end in pairwise(first.tolist())], np.float64)
