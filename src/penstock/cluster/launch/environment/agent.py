"""The agent of a node, which starts the tasks that the launcher sends it and reports how they end.

`AgentRegistry` is process 0's side: which agents are connected, and what they reported.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.cluster.launch.environment.place import Place
from penstock.cluster.launch.environment.rendezvous import (
    LAUNCHER,
    agent_name,
    derived_credentials,
    find_launcher,
    publish,
)
from penstock.cluster.launch.local import LocalProcess, started_here
from penstock.cluster.setup import read_setup
from penstock.errors import PenstockError
from penstock.interruption import polite_interrupt
from penstock.wire import Channel, Endpoint, Message

_BEAT = 0.2
"""Seconds between two reports."""


class Agent:
    """Talks to the launcher alone."""

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
        """Until the run is over; raises when the launcher is gone."""
        try:
            self._endpoint.meet(LAUNCHER, find_launcher(self._place, self._start_patience))
            channel = self._endpoint.channel(LAUNCHER)
            with polite_interrupt():
                # A first Ctrl-C is the controller's to answer: it has it as well.
                while not self._over.wait(_BEAT):
                    channel.call(self._report(), self._patience)
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
            # A call may come twice.
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
    """What a process is called between launcher and agent."""
    return f"{task}:{incarnation}"


def _check(sender: str) -> None:
    if sender != LAUNCHER:
        raise PenstockError(f"{sender} may not start tasks: only the launcher may.", code="not-permitted")


_LEAVING = 5.0
"""Seconds for agents to hear that the run is over."""


@dataclass
class AgentRecord:
    """An agent as the launcher knows it."""

    endpoint: str
    address: str
    """Where tasks of its node listen."""
    heard: float = 0.0
    """When it last reported, by the monotonic clock."""
    statuses: dict[str, int | None] = field(default_factory=dict)
    """Exit statuses of what it started; None: it runs."""


class AgentRegistry:
    """Hears agents from the moment it is made. Close it, or they wait for their patience to end."""

    def __init__(self, place: Place, secret: str, address: str, patience: float) -> None:
        self.place, self.address = place, address
        self._agents: dict[str, AgentRecord] = {}
        self._endpoint = Endpoint(derived_credentials(LAUNCHER, place.nodes, secret, place.job), address)
        self._endpoint.serve("report", self._hear)
        self.closed = False
        try:
            self._store: Any = publish(place, self._endpoint.address, patience)
        except BaseException:
            self._endpoint.close()
            raise

    def agent(self, name: str) -> AgentRecord | None:
        """An agent, if it has come."""
        return self._agents.get(name)

    def channel(self, name: str) -> Channel:
        """For orders to an agent."""
        return self._endpoint.channel(name)

    def close(self) -> None:
        """Let every agent go. Again is no harm."""
        if self.closed:
            return
        self.closed = True
        told = [self.channel(name).start(Message("over"), _LEAVING) for name in self._agents]
        for each in told:
            with suppress(PenstockError):
                each.result()
        self._endpoint.close()
        self._store = None

    def _hear(self, message: Message, sender: str) -> Message:
        endpoint, address = str(message.body["post"]), str(message.body["address"])
        agent = self._agents.get(sender)
        if agent is None or agent.endpoint != endpoint:
            self._endpoint.meet(sender, endpoint)
            agent = AgentRecord(endpoint, address)
        agent.heard = time.monotonic()
        agent.statuses = {str(key): status for key, status in message.body["statuses"].items()}
        self._agents[sender] = agent
        return Message("heard")
