"""Tasks on the nodes of a Ray cluster, behind the launchers' interface."""

from pathlib import Path

from penstock.cluster.launch.local import log_folder
from penstock.cluster.launch.ray.cluster import Keeper, RayCluster, connect
from penstock.cluster.launch.ray.discovery import with_ray_machines
from penstock.cluster.launch.ray.nodes import NodeAssignment
from penstock.cluster.launch.ray.shares import share_of
from penstock.cluster.launch.ray.task import RayTask
from penstock.cluster.launch.registry import LauncherEntry
from penstock.cluster.setup import Setup
from penstock.hardware.cluster import ClusterDocument


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

    def _place(self, setup: Setup) -> tuple[Keeper, str] | None:
        """Have a task kept on its machine's node, if there is one; the keeper and the node's address."""
        task = setup.task
        node = self._assignment.node_of(task.machine, self._ray.nodes())
        if node is None:
            return None
        told = task.model_copy(update={"address": self._assignment.address_on(task.machine, node)})
        share = share_of(task, setup.layout, self._machines[task.machine])
        setup = setup.model_copy(update={"task": told})
        return self._ray.keep(task.id, setup.model_dump_json(), node, share), node.address


RAY = LauncherEntry(RayLauncher, discover=with_ray_machines)
