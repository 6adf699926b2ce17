"""What a process sends, and in which order.

Messages from one task to another that share a name and a priority are a `Flow`, with a queue and counters. An
`EgressPolicy` says which flow is next, from what can be seen of the queues. `Egress` holds all flows of a process and
bounds the bytes that are on a connection at a time, since these can be neither reordered nor withdrawn.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.graph.arrays import Array

# A flow: the messages from one task to another that share a name, a queue and a priority.


class Route(NamedTuple):
    """The connections of the channel that a request came over."""

    port_index: int
    """The index of this process's port at which it arrived."""
    identity: int
    """The number of its connection group there."""


@dataclass(frozen=True)
class FlowCount:
    """The traffic of a flow, as this process saw it: bytes of headers and arrays, without those of
    network protocols.
    """

    name: str
    """caller>server, or caller>server/flow."""
    priority: int
    sent_bytes: int
    sent_messages: int
    received_bytes: int
    received_messages: int


@dataclass(eq=False)
class Outgoing:
    """A message to be sent."""

    flow: "Flow"
    route: Route | None
    """The connection that the request came over; None for requests of this process."""
    frames: list[bytes | Array]
    size: int
    """Its size in bytes."""
    sent: Callable[[bool], None]
    """Called when it leaves the queue, with whether it was handed to a connection (True) or dropped."""
    left: Callable[[], None]
    """Called when its memory is no longer read, also if it was dropped."""
    turn: int = 0
    """The batch it belongs to; lower ones are needed sooner."""
    arrival: int = 0
    cancelled: bool = False


@dataclass(eq=False)
class Flow:
    """The queue of a flow. As long as it is not empty, policies rank it by the message at its head."""

    name: str
    priority: int
    """Lower is more urgent."""
    queue: deque[Outgoing] = field(default_factory=deque)
    start: int = 0
    """The virtual start time: bytes that it would have sent with its full share when its next message was due."""
    in_flight: int = 0
    """Bytes on a connection."""
    moved: float = 0.0
    """When bytes last left, in seconds of the queues' clock."""
    blocked: bool = False
    """Whether there is no connection to send it over."""
    sent_bytes: int = 0
    sent_messages: int = 0
    received_bytes: int = 0
    received_messages: int = 0

    @property
    def arrival(self) -> int:
        """The number of the message at the head in the order of arrival, over all flows."""
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


# Which flow may send next: the policies by name. A policy ranks the heads of the queues, and the lowest rank goes
# first.


class EgressPolicy(NamedTuple):
    """Chooses which flow may send next."""

    rank: Callable[[Flow], tuple[int, ...]]
    level: Callable[[int], int]
    """The group of flows that share bandwidth, by priority: `start` is counted within a group."""
    within: bool = False
    """Whether earlier turns also go first within a flow, and large answers are cut so that they can."""


def _everybody(priority: int) -> int:
    return 0


def _equals(priority: int) -> int:
    return priority


URGENT = 0
"""The last priority of what is not requested ahead."""


def _coflow_rank(head: Flow) -> tuple[int, ...]:
    """Coflows in strict order: first what workers wait for with nothing else to do, then batches in order.

    Gradients, weights, embeddings and the controller's messages (priority 0 and below) go before lists and features,
    which are requested ahead. Of those, all that an earlier batch needs goes before anything of a later one; of one
    batch, draws before rows, since rows are known when the draws are there. Flows of one rank share by bytes: workers
    train in step, so that the batch of one is needed when the others' are. Nothing is starved for long: whatever is
    ahead belongs to a step that ends, and the next step needs what waited.
    """
    ahead = int(head.priority > URGENT)
    return ahead, head.turn, head.priority, head.start, head.arrival


POLICIES = {
    "fifo": EgressPolicy(lambda head: (head.arrival,), _everybody),
    # Start-time fair queueing: of two flows that always have something to send, neither is ever ahead by more than
    # one message of each.
    "fair": EgressPolicy(lambda head: (head.start, head.arrival), _everybody),
    "priority": EgressPolicy(lambda head: (head.priority, head.start, head.arrival), _equals),
    # Only the head of a flow is seen: what is behind it waits for it.
    "turns": EgressPolicy(lambda head: (head.turn, head.priority, head.start, head.arrival), _everybody),
    "coflow": EgressPolicy(_coflow_rank, _equals, within=True),
}


# The queues of a process: messages wait here until there is room on a connection and their flow is next.

_STALLED = 0.5
"""Seconds without progress after which a flow no longer holds up the others."""


class Egress:
    """Any thread puts; one takes. Times are seconds of one clock."""

    def __init__(self, policy: EgressPolicy, window: int) -> None:
        """`window`: bytes that may be on a connection at once, or one message if that is larger."""
        self._policy, self._window = policy, window
        self._flows: dict[tuple[str, bool], Flow] = {}
        self._queued, self._moving = set[Flow](), set[Flow]()
        """The flows with messages in their queues, and those with bytes on a connection: few of many."""
        self._clocks: defaultdict[int, int] = defaultdict(int)
        self._arrivals = 0
        self._lock = threading.Lock()

    def flow(self, name: str, priority: int, serving: bool = False) -> Flow:
        """The flow of that name, on this process's requesting or serving side; made on first use."""
        with self._lock:
            return self._flows.setdefault((name, serving), Flow(name, priority))

    def flows(self) -> list[Flow]:
        """All flows, in the order in which they were made."""
        with self._lock:
            return list(self._flows.values())

    def put(self, out: Outgoing) -> None:
        """Queue a message in its flow, in the flow's order."""
        with self._lock:
            flow = out.flow
            self._arrivals += 1
            out.arrival = self._arrivals
            if not flow.queue:
                self._catch_up(flow)
            flow.queue.insert(self._place(flow, out), out)
            self._queued.add(flow)

    def take(self, now: float) -> Outgoing | None:
        """The next message to be sent, which now counts as on a connection; None when none may go yet."""
        with self._lock:
            ready = [flow for flow in self._queued if not flow.blocked and not _stalled(flow, now)]
            if not ready:
                return None
            flow = min(ready, key=self._policy.rank)
            size = flow.queue[0].size
            busy = sum(each.in_flight for each in self._moving if not _stalled(each, now))
            if busy and busy + size > self._window:
                return None
            out = flow.queue.popleft()
            if not flow.queue:
                self._queued.discard(flow)
            self._clocks[self._policy.level(flow.priority)] = flow.start
            flow.start += size
            if not flow.in_flight:
                flow.moved = now
            flow.in_flight += size
            self._moving.add(flow)
            return out

    def handed_over(self, out: Outgoing) -> None:
        """Count a message that a connection has accepted."""
        with self._lock:
            out.flow.sent_bytes += out.size
            out.flow.sent_messages += 1

    def put_back(self, out: Outgoing) -> None:
        """Return a message to its queue for lack of a connection: its flow is blocked until `unblock`."""
        with self._lock:
            flow = out.flow
            flow.queue.appendleft(out)
            flow.start -= out.size
            self._queued.add(flow)
            self._landed(out)
            flow.blocked = True

    def unblock(self, flow: Flow) -> None:
        """Allow a flow to send again, as there is a connection."""
        with self._lock:
            flow.blocked = False
            self._catch_up(flow)

    def left(self, out: Outgoing, now: float) -> None:
        """A message that was taken has left its connection, or never got there."""
        with self._lock:
            if _stalled(out.flow, now):
                self._catch_up(out.flow)
            self._landed(out)
            out.flow.moved = now

    def withdraw(self, flow: Flow, everything: bool = False) -> list[Outgoing]:
        """Remove cancelled messages, or all, from a flow's queue."""
        with self._lock:
            gone = [out for out in flow.queue if everything or out.cancelled]
            if gone:
                flow.queue = type(flow.queue)(out for out in flow.queue if not (everything or out.cancelled))
                if not flow.queue:
                    self._queued.discard(flow)
            return gone

    def received(self, flow: Flow, size: int) -> None:
        """Count bytes that a flow received."""
        with self._lock:
            flow.received_bytes += size
            flow.received_messages += 1

    def waiting(self) -> int:
        """The number of messages in the queues."""
        with self._lock:
            return sum(len(flow.queue) for flow in self._queued)

    def in_flight(self) -> int:
        """The number of bytes handed to a connection and not yet sent."""
        with self._lock:
            return sum(flow.in_flight for flow in self._moving)

    def _landed(self, out: Outgoing) -> None:
        """Count a message as no longer on a connection."""
        out.flow.in_flight -= out.size
        if not out.flow.in_flight:
            self._moving.discard(out.flow)

    def _place(self, flow: Flow, out: Outgoing) -> int:
        """The position after everything of its flow, or after what is needed no later."""
        place = len(flow.queue)
        while self._policy.within and place and flow.queue[place - 1].turn > out.turn:
            place -= 1
        return place

    def _catch_up(self, flow: Flow) -> None:
        """Advance a flow's share: bandwidth that it did not use while idle or blocked is not owed to it."""
        flow.start = max(flow.start, self._clocks[self._policy.level(flow.priority)])


def _stalled(flow: Flow, now: float) -> bool:
    return flow.in_flight > 0 and now - flow.moved > _STALLED
