"""Which node of a Ray cluster is which machine, and what of the machine a task asks Ray for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cluster.layout import Layout, TaskSpec
from penstock.errors import PenstockError
from penstock.hardware.cluster import LOOPBACK, Machine

MACHINE = "machine:"
"""A node that was started with the resource machine:NAME is that machine."""
_SLACK = 1e-6


@dataclass(frozen=True)
class Node:
    """A living node, as Ray knows it. Memory in bytes."""

    id: str
    name: str
    host: str
    address: str
    cores: float
    gpus: float
    memory: float
    machines: frozenset[str]

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Node":
        """From an entry of `ray.nodes()`."""
        has = said["Resources"]
        return cls(
            said["NodeID"],
            said.get("NodeName") or said["NodeManagerAddress"],
            said["NodeManagerHostname"],
            said["NodeManagerAddress"],
            has.get("CPU", 0.0),
            has.get("GPU", 0.0),
            has.get("memory", 0.0),
            frozenset(name.removeprefix(MACHINE) for name in has if name.startswith(MACHINE)),
        )


class NodeAssignment:
    """Assigns machines to Ray nodes: by the machine's name or address, or to a spare node where that is allowed.

    A machine stays on its node while that lives.
    """

    def __init__(self, machines: Sequence[Machine], spares: bool) -> None:
        self._machines = {machine.name: machine for machine in machines}
        self._spares = spares
        self._nodes: dict[str, str] = {}

    def node_of(self, name: str, nodes: Sequence[Node]) -> Node | None:
        """The running node of a machine, or None where it has none."""
        by_id = {node.id: node for node in nodes}
        taken = {node_id for machine, node_id in self._nodes.items() if machine != name}
        node = by_id.get(self._nodes.get(name, ""))
        if node is None:
            found = self._candidates(self._machines[name], nodes, taken)
            node = next((each for each in found if each.id not in taken), found[0] if found else None)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node.id
        return node

    def address_on(self, name: str, node: Node) -> str:
        """Where the machine's tasks listen on a node: at its own address, unless that is another host's or none."""
        machine = self._machines[name]
        ours = machine.address not in LOOPBACK and (name in node.machines or name in (node.name, node.host))
        return machine.address if ours else node.address

    def check(self, nodes: Sequence[Node]) -> None:
        """Refuse a Ray cluster that lacks a node or resources for a machine."""
        for machine in self._machines.values():
            if self.node_of(machine.name, nodes) is None:
                known = ", ".join(sorted(f"{node.name} ({node.address})" for node in nodes))
                raise PenstockError(
                    f"Ray has no node for machine {machine.name}: start one with"
                    f" --resources='{{\"{MACHINE}{machine.name}\": 1}}', or give the machine the name or address of one"
                    f" of these: {known}.",
                    code="infeasible",
                )
        for node in nodes:
            here = [self._machines[name] for name, node_id in self._nodes.items() if node_id == node.id]
            if problem := lacking(here, node):
                names = " and ".join(machine.name for machine in here)
                raise PenstockError(
                    f"The Ray node {node.name} has too little for {names}: {problem}.", code="infeasible"
                )

    def _candidates(self, machine: Machine, nodes: Sequence[Node], taken: set[str]) -> list[Node]:
        found = [node for node in nodes if machine.name in node.machines]
        found = found or [node for node in nodes if machine.name in (node.name, node.host)]
        if machine.address not in LOOPBACK:
            found = found or [node for node in nodes if node.address == machine.address]
        if self._spares and not any(node.id not in taken for node in found):
            found = [node for node in nodes if node.id not in taken and not lacking([machine], node)]
        return found


def lacking(machines: Sequence[Machine], node: Node) -> str:
    """What a node has too little of to be these machines; empty: nothing."""
    asked = {
        "cores": (sum(machine.cores or 0 for machine in machines), node.cores),
        "GPUs": (sum(machine.gpus for machine in machines), node.gpus),
        "GB of memory": (sum(machine.memory_gb or 0 for machine in machines), node.memory / 1e9),
    }
    lacks = [f"{has:g} {what} of {need:g}" for what, (need, has) in asked.items() if need > has * (1 + _SLACK)]
    return ", ".join(lacks)


_COMPUTING = ("worker", "sampler")
_FINEST = 10_000
"""Ray counts in ten-thousandths."""


@dataclass(frozen=True)
class Share:
    """The resources of a machine that one task asks of Ray. Memory is in bytes."""

    cores: float = 0.0
    gpus: float = 0.0
    memory: int = 0


def share_of(task: TaskSpec, layout: Layout, machine: Machine) -> Share:
    """Those that compute divide the cores and the memory among them, and workers the GPUs.

    Stores and servers mostly wait for the network and ask for nothing, unless the machine has nobody else.
    """
    here = [each for each in layout.tasks if each.machine == machine.name]
    sharing = [each for each in here if each.kind in _COMPUTING] or here
    workers = sum(each.kind == "worker" for each in here)
    if task.id not in {each.id for each in sharing}:
        return Share()
    return Share(
        _part(machine.cores or 0, len(sharing)),
        _whole_gpus(machine.gpus, workers) if task.kind == "worker" else 0.0,
        int((machine.memory_gb or 0) * 1e9) // len(sharing),
    )


def _part(amount: float, among: int) -> float:
    """Rounded down, so that all parts together are no more than there is."""
    return math.floor(amount / among * _FINEST) / _FINEST


def _whole_gpus(gpus: int, workers: int) -> float:
    """Ray gives parts of one GPU, but not of several: of workers that share, so many must fit each."""
    if gpus >= workers:
        return float(gpus // workers)
    return _part(1, math.ceil(workers / gpus)) if gpus else 0.0
