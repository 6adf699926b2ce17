"""Launches tasks on the nodes of a Ray cluster.

A cluster file that says `machines: ray` has one machine for each of them.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.cluster.launch.local import log_folder
from penstock.cluster.launch.ray.cluster import RayActorHandle, RayCluster, connect, join
from penstock.cluster.launch.ray.nodes import Node, NodeAssignment, share_of
from penstock.cluster.launch.ray.task import RayTask
from penstock.cluster.launch.registry import LauncherEntry
from penstock.cluster.setup import Setup
from penstock.errors import PenstockError
from penstock.graph.documents import first_problem
from penstock.hardware.cluster import ClusterDocument, Machine, RayOptions


def with_ray_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a cluster file, with the machines that Ray has."""
    try:
        # A machine that was found is whichever node can be it, also when the run goes on another day.
        options = RayOptions.model_validate({"address": "auto", "spares": True, **(fields.get("ray") or {})})
    except (ValidationError, TypeError) as error:
        said = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise PenstockError(f"The cluster file's ray: {said}.", code="invalid-document") from None
    cluster = join(options)
    try:
        machines = machines_of_nodes(cluster.nodes())
    finally:
        cluster.close()
    return {**fields, "machines": machines, "ray": options}


def machines_of_nodes(nodes: Sequence[Node]) -> list[Machine]:
    """One machine for each node, with one worker for each GPU, or one worker if it has none.

    Nodes without cores are left out: they only keep Ray running.
    """
    nodes = [node for node in nodes if node.cores >= 1]
    if not nodes:
        raise PenstockError(
            "No node of the Ray cluster has a CPU to train on: start one with `ray start`.", code="infeasible"
        )
    return [
        Machine(
            name=name,
            address=node.address,
            workers=max(1, int(node.gpus)),
            cores=int(node.cores),
            memory_gb=math.floor(node.memory / 1e6) / 1e3 or None,
            gpus=int(node.gpus),
        )
        for name, node in zip(_names(nodes), nodes, strict=True)
    ]


def _names(nodes: Sequence[Node]) -> Iterator[str]:
    """As the node was labelled, or is called; a number behind those that would be the same."""
    used: set[str] = set()
    for node in nodes:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", min(node.machines, default=node.name)).lstrip("_.-")[:30] or "node"
        name = next(name for n in range(len(nodes) + 1) if (name := f"{plain}-{n}" if n else plain) not in used)
        used.add(name)
        yield name


class RayLauncher:
    """Pins every task to the node that is its machine. The controller starts lost tasks again; Ray does not."""

    def __init__(self, cluster: ClusterDocument, run: Path) -> None:
        log_folder(run)
        self._machines = {machine.name: machine for machine in cluster.machines}
        self._assignment = NodeAssignment(cluster.machines, cluster.ray.spares)
        self._ray: RayCluster = connect(cluster)
        self._tasks: list[RayTask] = []
        try:
            self._assignment.check(self._ray.nodes())
            self.interface: str | None = self._ray.interface
        except BaseException:
            self._ray.close()
            raise

    def start(self, setup: Setup) -> RayTask:
        """Start a task, when its machine has a node."""
        self._tasks = [task for task in self._tasks if not task.over]
        task = RayTask(setup, self._place, self.interface)
        self._tasks.append(task)
        return task

    def close(self) -> None:
        """End every task, and leave Ray."""
        for task in self._tasks:
            task.kill()
        self._tasks = []
        self._ray.close()

    def _place(self, setup: Setup) -> tuple[RayActorHandle, str] | None:
        """Have a task started on its machine's node, if there is one; the actor and the node's address."""
        task = setup.task
        node = self._assignment.node_of(task.machine, self._ray.nodes())
        if node is None:
            return None
        told = task.model_copy(update={"address": self._assignment.address_on(task.machine, node)})
        share = share_of(task, setup.layout, self._machines[task.machine])
        setup = setup.model_copy(update={"task": told})
        return self._ray.start_actor(task.id, setup.model_dump_json(), node, share), node.address


RAY = LauncherEntry(RayLauncher, discover=with_ray_machines)
