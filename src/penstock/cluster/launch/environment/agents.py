"""Process 0's view of the agents: which of them are connected, and what they reported."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.cluster.launch.environment.meeting_point import publish
from penstock.cluster.launch.environment.place import Place
from penstock.cluster.launch.environment.secret import LAUNCHER, derived_credentials
from penstock.errors import PenstockError
from penstock.wire import Channel, Endpoint, Message

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
