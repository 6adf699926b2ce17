"""A flow: the messages from one task to another that share a name, a queue and a priority."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.graph.arrays import Array


class Route(NamedTuple):
    """The connections of a peer's channel that asks."""

    port_index: int
    """At which of this process's sockets it came in."""
    identity: int
    """The group's number there."""


@dataclass(frozen=True)
class FlowCount:
    """What a flow has carried, as this process saw it. Bytes of headers and arrays, without the network's own."""

    name: str
    """caller>server, or caller>server/flow."""
    priority: int
    sent_bytes: int
    sent_messages: int
    received_bytes: int
    received_messages: int


@dataclass(eq=False)
class Outgoing:
    """A message on its way out."""

    flow: "Flow"
    route: Route | None
    """The connection that asked; None for what this process asks."""
    frames: list[bytes | Array]
    size: int
    """Bytes."""
    sent: Callable[[bool], None]
    """Told, when it leaves the queue, whether it was handed over (True) or dropped."""
    left: Callable[[], None]
    """Told when its memory is nobody's any more. Also of what was dropped."""
    turn: int = 0
    """The batch it belongs to; lower ones are needed sooner."""
    arrival: int = 0
    cancelled: bool = False


@dataclass(eq=False)
class Flow:
    """The queue of a flow. It is a policy's `Head` as long as something is in it."""

    name: str
    priority: int
    queue: deque[Outgoing] = field(default_factory=deque)
    start: int = 0
    in_flight: int = 0
    """Bytes on a connection."""
    moved: float = 0.0
    """When bytes last left, in seconds of the clock that the queues are told."""
    blocked: bool = False
    """Whether there is no connection to send it over."""
    sent_bytes: int = 0
    sent_messages: int = 0
    received_bytes: int = 0
    received_messages: int = 0

    @property
    def arrival(self) -> int:
        """The arrival number of the message at the head."""
        return self.queue[0].arrival

    @property
    def turn(self) -> int:
        """The turn of the message at the head."""
        return self.queue[0].turn

    def count(self) -> FlowCount:
        """The counters as they are."""
        return FlowCount(
            self.name, self.priority, self.sent_bytes, self.sent_messages, self.received_bytes, self.received_messages
        )
