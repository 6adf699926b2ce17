"""The role of each process of a job: controller, agent of its node, or none."""

import atexit

from penstock.cluster.launch.environment.agent import Agent
from penstock.cluster.launch.environment.agents import AgentRegistry
from penstock.cluster.launch.environment.place import Place, read_place
from penstock.cluster.launch.environment.secret import read_secret
from penstock.errors import PenstockError
from penstock.hardware.cluster import LOOPBACK, ClusterDocument

_open: dict[Place, AgentRegistry] = {}
"""The gathering of this process, if it is its job's first: the environment is the whole process's."""


def become(cluster: ClusterDocument) -> bool:
    """Call it first in every process. True: this one controls the run. False: its part, if it had one, is over."""
    place = _checked_place(cluster)
    if place.first:
        # Agents are heard from now on: they know that this process lives while it reads and cuts the graph.
        gathered(cluster)
        return True
    if place.local == 0:
        failure = cluster.failure
        Agent(place, read_secret(), _address(cluster, place), failure.patience, failure.start_patience).run()
    return False


def gathered(cluster: ClusterDocument) -> AgentRegistry:
    """The gathering of this process's job, made at the first call and closed at the latest when the process ends."""
    place = _checked_place(cluster)
    if not place.first:
        raise PenstockError(
            "Only the first process of a job controls a run: call `take_part` first.", code="not-permitted"
        )
    if place not in _open or _open[place].closed:
        made = AgentRegistry(place, read_secret(), _address(cluster, place), cluster.failure.patience)
        _open[place] = made
        atexit.register(made.close)
    return _open[place]


def _checked_place(cluster: ClusterDocument) -> Place:
    place = read_place()
    if place.nodes != len(cluster.machines):
        raise PenstockError(
            f"The job has {place.nodes} nodes, and the cluster file {len(cluster.machines)} machines: list one machine"
            " for each node, in their order, or set `machines: environment`.",
            code="mismatched-inputs",
        )
    return place


def _address(cluster: ClusterDocument, place: Place) -> str:
    """A machine's own entry, or else what the system says."""
    said = cluster.machines[place.node].address
    return place.address() if said in LOOPBACK else said
