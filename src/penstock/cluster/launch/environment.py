"""Tasks on the nodes of a job that torchrun or srun has started: every process of it runs the same command.

Process 0 becomes the controller and starts its own node's tasks. On every other node the first process becomes an
*agent*, which starts the tasks that the controller sends it; further processes of a node end at once, as tasks are
processes of their own. `job_processes` reads a process's place from the environment, and says how processes find and
authenticate each other.
"""

import atexit
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cluster.launch.job_processes import (
    LAUNCHER,
    Place,
    agent_name,
    derived_credentials,
    find_launcher,
    publish,
    read_place,
    read_secret,
    with_job_machines,
)
from penstock.cluster.launch.local import LocalProcess, log_folder, started_here
from penstock.cluster.launch.registry import Handle, LauncherEntry
from penstock.cluster.layout import Setup, read_setup
from penstock.errors import PenstockError
from penstock.hardware.cluster import LAUNCHER_FACTS, LOOPBACK, ClusterDocument
from penstock.processes import polite_interrupt
from penstock.wire.channel import PeerLost, PendingCall
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

# The agent of a node, which starts the tasks that the launcher sends it and reports how they end.
#
# `AgentRegistry` is process 0's side: which agents are connected, and what they reported.

_BEAT, _LOOK = 0.2, 0.02
"""Seconds between two reports, and between two looks for the answer to one."""


class Agent:
    """Starts tasks for the launcher, and exchanges messages only with it."""

    def __init__(
        self, place: Place, secret: str, address: str, patience: float, start_patience: float | None = None
    ) -> None:
        """`address`: where this node's tasks listen; `patience`: seconds without the launcher until it is given up.

        `start_patience`: seconds that the launcher may take to start; as long as `patience` if None.
        """
        name = agent_name(place.node)
        self._place, self._address, self._patience = place, address, patience
        self._start_patience = patience if start_patience is None else start_patience
        self._processes: dict[str, LocalProcess] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._endpoint = Endpoint(derived_credentials(name, place.nodes, secret, place.job), address)
        for kind, handler in {"start": self._start, "end": self._end, "over": self._end_all}.items():
            self._endpoint.serve(kind, handler)

    def run(self) -> None:
        """Serve until the run is over; raises when the launcher is gone."""
        try:
            self._endpoint.meet(LAUNCHER, find_launcher(self._place, self._start_patience))
            channel = self._endpoint.channel(LAUNCHER)
            with polite_interrupt():
                # The controller gets Ctrl-C as well and handles the first one.
                while not self._over.wait(_BEAT):
                    report = channel.start(self._report(), self._patience)
                    # A launcher that ends leaves a report that is under way without an answer.
                    while not (report.over or self._over.wait(_LOOK)):
                        pass
                    if report.over:
                        report.result()
        except PenstockError:
            if not self._over.is_set():
                raise
        finally:
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    process.kill()
            self._endpoint.close()

    def _report(self) -> Message:
        with self._lock:
            statuses = {key: process.poll() for key, process in self._processes.items()}
        return Message("report", {"post": self._endpoint.address, "address": self._address, "statuses": statuses})

    def _start(self, message: Message, sender: str) -> Message:
        _check(sender)
        setup = read_setup(message.arrays[0].tobytes().decode())
        key = key_of(setup.task.id, setup.incarnation)
        with self._lock:
            # The call may be a repeated one.
            if key not in self._processes and not self._over.is_set():
                self._processes[key] = started_here(setup)
        return Message("started")

    def _end(self, message: Message, sender: str) -> Message:
        _check(sender)
        process = self._processes.get(str(message.body.get("task")))
        if process is not None:
            process.kill()
        return Message("ended")

    def _end_all(self, message: Message, sender: str) -> Message:
        _check(sender)
        self._over.set()
        return Message("heard")


def key_of(task: str, incarnation: int) -> str:
    """The key of a task's process in messages between launcher and agent."""
    return f"{task}:{incarnation}"


def _check(sender: str) -> None:
    if sender != LAUNCHER:
        raise PenstockError(f"{sender} may not start tasks: only the launcher may.", code="not-permitted")


_LEAVING = 5.0
"""Seconds for agents to receive the message that the run is over."""


@dataclass
class AgentRecord:
    """An agent as the launcher sees it."""

    endpoint: str
    address: str
    """Where tasks of its node listen."""
    heard: float = 0.0
    """The time of its last report, by the monotonic clock."""
    statuses: dict[str, int | None] = field(default_factory=dict)
    """Exit statuses of the tasks that it started; None: still running."""


class AgentRegistry:
    """Accepts agents from the moment it is made. It must be closed, or they wait until their patience ends."""

    def __init__(self, place: Place, secret: str, address: str, patience: float) -> None:
        self.place, self.address = place, address
        self.agents: dict[str, AgentRecord] = {}
        """The agents that have connected, by name."""
        self.endpoint = Endpoint(derived_credentials(LAUNCHER, place.nodes, secret, place.job), address)
        self.endpoint.serve("report", self._hear)
        self.closed = False
        try:
            self._store: Any = publish(place, self.endpoint.address, patience)
        except BaseException:
            self.endpoint.close()
            raise

    def close(self) -> None:
        """Tell every agent that the run is over; may be called again."""
        if self.closed:
            return
        self.closed = True
        told = [self.endpoint.channel(name).start(Message("over"), _LEAVING) for name in self.agents]
        for each in told:
            with suppress(PenstockError):
                each.result()
        self.endpoint.close()
        self._store = None

    def _hear(self, message: Message, sender: str) -> Message:
        endpoint, address = str(message.body["post"]), str(message.body["address"])
        agent = self.agents.get(sender)
        if agent is None or agent.endpoint != endpoint:
            self.endpoint.meet(sender, endpoint)
            agent = AgentRecord(endpoint, address)
        agent.heard = time.monotonic()
        agent.statuses = {str(key): status for key, status in message.body["statuses"].items()}
        self.agents[sender] = agent
        return Message("heard")


# Launches tasks on the nodes of a job: on process 0's node as its own processes, on others through agents.

_LOST = -signal.SIGKILL
"""The status of a task that was killed, or was lost with its agent."""
_REFUSED = 2
"""The status of a task that its machine could not start: the same as of one that refuses its setup."""
_QUIET = 2.0
"""Seconds without a report after which an agent counts as in trouble."""
_ENDING = 10.0
"""Seconds for an agent to end a task."""


class EnvironmentLauncher:
    """Launches tasks through agents: the n-th machine of the cluster file is the n-th node of the job."""

    def __init__(self, cluster: ClusterDocument, run: Path) -> None:
        log_folder(run)
        self._gathering = gathered(cluster)
        self._nodes = {machine.name: number for number, machine in enumerate(cluster.machines)}
        self.interface: str | None = self._gathering.address

    def start(self, setup: Setup) -> Handle:
        """Start a task as soon as its node's agent has connected."""
        node = self._nodes[setup.task.machine]
        if node:
            return AgentTask(setup, agent_name(node), self._gathering)
        return started_here(listening_at(setup, self._gathering.address))

    def close(self) -> None:
        """Release the agents; they end their remaining tasks."""
        self._gathering.close()


class AgentTask:
    """A handle on a task of another node."""

    pid = None

    def __init__(self, setup: Setup, agent: str, gathering: AgentRegistry) -> None:
        self._setup, self._agent, self._gathering = setup, agent, gathering
        self._key = key_of(setup.task.id, setup.incarnation)
        self._asked: PendingCall | None = None
        self._endpoint = self._refusal = ""
        self._status: int | None = None
        self._ask()

    @property
    def trouble(self) -> str:
        """Why it does not run, or cannot be reached."""
        agent = self._gathering.agents.get(self._agent)
        if self._refusal or self._status is not None:
            return self._refusal
        if agent is None:
            return f"the agent of machine {self._setup.task.machine} has not come"
        quiet = time.monotonic() - agent.heard > _QUIET
        return f"the agent of machine {self._setup.task.machine} is gone" if quiet else ""

    def poll(self) -> int | None:
        if self._status is None:
            self._ask()
            agent = self._gathering.agents.get(self._agent)
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
                    self._gathering.endpoint.channel(self._agent).call(Message("end", {"task": self._key}), _ENDING)

    def _ask(self) -> None:
        """Send the setup to the agent, once."""
        agent = self._gathering.agents.get(self._agent)
        if self._asked is None and agent is not None:
            text = listening_at(self._setup, agent.address).text().encode()
            message = Message("start", arrays=(np.frombuffer(text, np.uint8),))
            self._asked = self._gathering.endpoint.channel(self._agent).start(
                message, self._setup.cluster.failure.patience
            )
            self._endpoint = agent.endpoint

    def _look_at_start(self) -> None:
        """Check whether the agent could start it."""
        if self._asked is None or not self._asked.over:
            return
        try:
            self._asked.result()
        except PeerLost:
            # The controller will notice that the task is silent.
            return
        except PenstockError as error:
            self._status, self._refusal = _REFUSED, str(error)


def listening_at(setup: Setup, address: str) -> Setup:
    """The setup of a task that listens at another address than its machine's entry says."""
    return setup.model_copy(update={"task": setup.task.model_copy(update={"address": address})})


_open: dict[Place, AgentRegistry] = {}
"""The agent registry of this process, if it is its job's first; global, as the environment is the whole process's."""


def become(cluster: ClusterDocument) -> bool:
    """Call it first in every process. True: this one controls the run. False: its part, if it had one, is over."""
    place = _checked_place(cluster)
    if place.first:
        # Agents are answered from now on, so that they know this process lives while it reads and partitions the graph.
        gathered(cluster)
        return True
    if place.local == 0:
        failure = cluster.failure
        Agent(place, read_secret(), _address(cluster, place), failure.patience, failure.start_patience).run()
    return False


def gathered(cluster: ClusterDocument) -> AgentRegistry:
    """The agent registry of this process's job, made at the first call and closed when the process
    ends at the latest.
    """
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
    """The address in a machine's entry, or else the one that the system reports."""
    said = cluster.machines[place.node].address
    return place.address() if said in LOOPBACK else said


ENVIRONMENT = LauncherEntry(EnvironmentLauncher, become, with_job_machines, LAUNCHER_FACTS["environment"])
