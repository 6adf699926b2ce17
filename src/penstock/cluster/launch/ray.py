"""Tasks on the nodes of a Ray cluster.

Ray runs none of our code but one actor for each task, which starts the task's process on its node, as everywhere else,
and reports how it ended. `ray_cluster` has all use of Ray: which node is which machine, the resources that a task
requests, and the actor.
"""

import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.cluster.launch.local import log_folder
from penstock.cluster.launch.ray_cluster import (
    Node,
    NodeAssignment,
    RayActorHandle,
    RayCluster,
    connect,
    join,
    share_of,
)
from penstock.cluster.launch.registry import LauncherEntry
from penstock.cluster.layout import Setup
from penstock.errors import PenstockError
from penstock.graph.documents import first_problem
from penstock.hardware.cluster import LAUNCHER_FACTS, ClusterDocument, Machine, RayOptions

# A task on a Ray cluster: waits for its machine's node, runs there, and ends with it.

_LOST = -signal.SIGKILL
"""The status of a task whose node is gone."""
_REFUSED = 2
"""The status of a task that its machine could not start: the same as of one that refuses its setup."""
_AGAIN = 0.25
"""Seconds between two searches for a node."""


class RayTask:
    """A handle on a task. `place` starts it on its machine's node and returns the node's address; None: there is no
    node now.
    """

    def __init__(
        self, setup: Setup, place: Callable[[Setup], tuple[RayActorHandle, str] | None], host: str | None
    ) -> None:
        """`host` is the address of this host."""
        self._setup, self._place, self._host = setup, place, host
        self._running = False
        self._status: int | None = None
        self._actor: RayActorHandle | None = None
        self._address = self._refusal = ""
        self._try_to_place()

    @property
    def pid(self) -> int | None:
        return self._actor.pid() if self._actor is not None and self._address == self._host else None

    @property
    def trouble(self) -> str:
        if self._status is not None or self._running:
            return self._refusal
        machine = self._setup.task.machine
        if self._actor is None:
            return f"machine {machine} has no living Ray node, see `ray status`"
        return f"Ray has not started it on machine {machine}, see `ray status` for what is left there"

    @property
    def over(self) -> bool:
        """Whether it has ended and its status was read."""
        return self._status is not None

    def poll(self) -> int | None:
        if self._status is None:
            if self._actor is not None:
                self._look(self._actor)
            elif time.monotonic() - self._looked >= _AGAIN:
                self._try_to_place()
        return self._status

    def kill(self) -> None:
        if self._status is None:
            # The reason why it did not run can still be asked for.
            self._refusal = self.trouble
            self._status = _LOST
            if self._actor is not None:
                self._actor.end()

    def _try_to_place(self) -> None:
        self._looked = time.monotonic()
        if placed := self._place(self._setup):
            self._actor, self._address = placed

    def _look(self, actor: RayActorHandle) -> None:
        self._running = self._running or actor.pid() is not None
        end = actor.look()
        if end is None:
            return
        if end.how == "refused":
            self._status, self._refusal = _REFUSED, end.why
        elif end.how == "ended":
            self._status = end.status
        elif self._running:
            self._status = _LOST
        else:
            # Its node was lost before the actor started. The task has not failed: another node is searched.
            self._actor = None


# Launches tasks on the nodes of a Ray cluster.
#
# A cluster file that says `machines: ray` has one machine for each of them.


def with_ray_machines(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a cluster file, with the machines that Ray has."""
    try:
        # A machine that was found may be any fitting node, also when the run is resumed on another day.
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
    """The node's label or its name, with a number appended to repeated ones."""
    used: set[str] = set()
    for node in nodes:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", min(node.machines, default=node.name)).lstrip("_.-")[:30] or "node"
        name = next(name for n in range(len(nodes) + 1) if (name := f"{plain}-{n}" if n else plain) not in used)
        used.add(name)
        yield name


class RayLauncher:
    """Pins every task to the node of its machine. Lost tasks are restarted by the controller, not by Ray."""

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
        """Start a task as soon as its machine has a node."""
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
        """Start a task's actor on its machine's node, if there is one; returns the actor and the node's address."""
        task = setup.task
        node = self._assignment.node_of(task.machine, self._ray.nodes())
        if node is None:
            return None
        told = task.model_copy(update={"address": self._assignment.address_on(task.machine, node)})
        share = share_of(task, setup.layout, self._machines[task.machine])
        setup = setup.model_copy(update={"task": told})
        return self._ray.start_actor(task.id, setup.text(), node, share), node.address


RAY = LauncherEntry(RayLauncher, discover=with_ray_machines, facts=LAUNCHER_FACTS["ray"])
