"""Launches tasks on the nodes of a job: on process 0's node as its own processes, on others through agents."""

import atexit
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from penstock.cluster.launch.environment.agent import Agent, AgentRegistry, key_of
from penstock.cluster.launch.environment.place import Place, read_place, with_job_machines
from penstock.cluster.launch.environment.rendezvous import agent_name, read_secret
from penstock.cluster.launch.local import log_folder, started_here
from penstock.cluster.launch.registry import Handle, LauncherEntry
from penstock.cluster.setup import Setup
from penstock.errors import PenstockError
from penstock.hardware.cluster import LOOPBACK, ClusterDocument
from penstock.wire import Message, PeerLost, PendingCall

_LOST = -signal.SIGKILL
"""The status of a task that was ended, or went with its agent."""
_REFUSED = 2
"""The status of a task that its machine could not start, as of one that refuses itself."""
_QUIET = 2.0
"""Seconds after which an agent that has not reported is in trouble."""
_ENDING = 10.0
"""Seconds for an agent to end a task."""


class EnvironmentLauncher:
    """The n-th machine of the cluster file is the n-th node of the job."""

    def __init__(self, cluster: ClusterDocument, run: Path) -> None:
        log_folder(run)
        self._gathering = gathered(cluster)
        self._nodes = {machine.name: number for number, machine in enumerate(cluster.machines)}
        self.interface: str | None = self._gathering.address

    def start(self, setup: Setup) -> Handle:
        """Start a task, as soon as its node's agent has come."""
        node = self._nodes[setup.task.machine]
        if node:
            return AgentTask(setup, agent_name(node), self._gathering)
        return started_here(listening_at(setup, self._gathering.address))

    def close(self) -> None:
        """Let the agents go; they end what they still have."""
        self._gathering.close()


class AgentTask:
    """A handle on a task of another node."""

    def __init__(self, setup: Setup, agent: str, gathering: AgentRegistry) -> None:
        self._setup, self._agent, self._gathering = setup, agent, gathering
        self._key = key_of(setup.task.id, setup.incarnation)
        self._asked: PendingCall | None = None
        self._endpoint = self._refusal = ""
        self._status: int | None = None
        self._ask()

    @property
    def pid(self) -> int | None:
        """None: the process runs on another host."""
        return None

    @property
    def trouble(self) -> str:
        """Why it does not run, or cannot be asked."""
        agent = self._gathering.agent(self._agent)
        if self._refusal or self._status is not None:
            return self._refusal
        if agent is None:
            return f"the agent of machine {self._setup.task.machine} has not come"
        quiet = time.monotonic() - agent.heard > _QUIET
        return f"the agent of machine {self._setup.task.machine} is gone" if quiet else ""

    def poll(self) -> int | None:
        """Its exit status; None while it runs, or its agent has not come."""
        if self._status is None:
            self._ask()
            agent = self._gathering.agent(self._agent)
            if agent is not None and self._asked is not None:
                lost = agent.endpoint != self._endpoint
                self._status = _LOST if lost else agent.statuses.get(self._key)
            self._look_at_start()
        return self._status

    def kill(self) -> None:
        """Ask the agent to end the process."""
        if self._status is None:
            self._refusal = self.trouble
            self._status = _LOST
            if self._asked is not None and not self._refusal:
                with suppress(PenstockError):
                    self._gathering.channel(self._agent).call(Message("end", {"task": self._key}), _ENDING)

    def _ask(self) -> None:
        """Hand the setup to the agent, once."""
        agent = self._gathering.agent(self._agent)
        if self._asked is None and agent is not None:
            text = listening_at(self._setup, agent.address).model_dump_json().encode()
            message = Message("start", arrays=(np.frombuffer(text, np.uint8),))
            self._asked = self._gathering.channel(self._agent).start(message, self._setup.cluster.failure.patience)
            self._endpoint = agent.endpoint

    def _look_at_start(self) -> None:
        """Whether the agent could start it."""
        if self._asked is None or not self._asked.over:
            return
        try:
            self._asked.result()
        except PeerLost:
            # The controller sees that the task is silent.
            return
        except PenstockError as error:
            self._status, self._refusal = _REFUSED, str(error)


def listening_at(setup: Setup, address: str) -> Setup:
    """The setup of a task that listens elsewhere than its machine's entry says."""
    return setup.model_copy(update={"task": setup.task.model_copy(update={"address": address})})


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


ENVIRONMENT = LauncherEntry(EnvironmentLauncher, become, with_job_machines)
