"""The queues of a process: messages wait here until there is room on a connection and their flow's turn has come."""

import threading
from collections import defaultdict

from penstock.wire.egress.flow import Flow, Outgoing
from penstock.wire.egress.policies import Policy

_STALLED = 0.5
"""Seconds without a byte leaving after which a flow no longer holds up the others."""


class Egress:
    """Any thread puts; one takes. Times are seconds of any one clock."""

    def __init__(self, policy: Policy, window: int) -> None:
        """`window`: bytes that may be on a connection at once, or one message if that is larger."""
        self._policy, self._window = policy, window
        self._flows: dict[tuple[str, bool], Flow] = {}
        self._clocks: defaultdict[int, int] = defaultdict(int)
        self._arrivals = 0
        self._lock = threading.Lock()

    def flow(self, name: str, priority: int, serving: bool = False) -> Flow:
        """The flow of that name, on this process's asking or serving side; made when first asked for."""
        with self._lock:
            return self._flows.setdefault((name, serving), Flow(name, priority))

    def flows(self) -> list[Flow]:
        """All of them, in the order in which they were made."""
        with self._lock:
            return list(self._flows.values())

    def put(self, out: Outgoing) -> None:
        """Let it wait for its turn."""
        with self._lock:
            flow = out.flow
            self._arrivals += 1
            out.arrival = self._arrivals
            if not flow.queue:
                self._catch_up(flow)
            flow.queue.insert(self._place(flow, out), out)

    def take(self, now: float) -> Outgoing | None:
        """The next message to be sent, from now on counted as on a connection; None when none may go yet."""
        with self._lock:
            ready = [flow for flow in self._flows.values() if flow.queue and not flow.blocked]
            ready = [flow for flow in ready if not _stalled(flow, now)]
            if not ready:
                return None
            flow = min(ready, key=self._policy.rank)
            size = flow.queue[0].size
            busy = sum(each.in_flight for each in self._flows.values() if not _stalled(each, now))
            if busy and busy + size > self._window:
                return None
            out = flow.queue.popleft()
            self._clocks[self._policy.level(flow.priority)] = flow.start
            flow.start += size
            if not flow.in_flight:
                flow.moved = now
            flow.in_flight += size
            return out

    def handed_over(self, out: Outgoing) -> None:
        """A connection has taken it: count it."""
        with self._lock:
            out.flow.sent_bytes += out.size
            out.flow.sent_messages += 1

    def put_back(self, out: Outgoing) -> None:
        """There is no connection: neither this nor anything else of its flow can be sent until `unblock`."""
        with self._lock:
            flow = out.flow
            flow.queue.appendleft(out)
            flow.start -= out.size
            flow.in_flight -= out.size
            flow.blocked = True

    def unblock(self, flow: Flow) -> None:
        """There is a connection again."""
        with self._lock:
            flow.blocked = False
            self._catch_up(flow)

    def left(self, out: Outgoing, now: float) -> None:
        """A message that was taken has left its connection, or never got there."""
        with self._lock:
            if _stalled(out.flow, now):
                self._catch_up(out.flow)
            out.flow.in_flight -= out.size
            out.flow.moved = now

    def withdraw(self, flow: Flow, everything: bool = False) -> list[Outgoing]:
        """Take cancelled messages, or all, out of a flow's queue."""
        with self._lock:
            gone = [out for out in flow.queue if everything or out.cancelled]
            if gone:
                flow.queue = type(flow.queue)(out for out in flow.queue if not (everything or out.cancelled))
            return gone

    def received(self, flow: Flow, size: int) -> None:
        """Count bytes that a flow received."""
        with self._lock:
            flow.received_bytes += size
            flow.received_messages += 1

    def waiting(self) -> int:
        """The number of messages in the queues."""
        with self._lock:
            return sum(len(flow.queue) for flow in self._flows.values())

    def in_flight(self) -> int:
        """The number of bytes handed to a connection and not yet sent."""
        with self._lock:
            return sum(flow.in_flight for flow in self._flows.values())

    def _place(self, flow: Flow, out: Outgoing) -> int:
        """Behind everything of its flow, or behind what is needed no later."""
        place = len(flow.queue)
        while self._policy.within and place and flow.queue[place - 1].turn > out.turn:
            place -= 1
        return place

    def _catch_up(self, flow: Flow) -> None:
        """What a flow did not use while it had nothing to send, or could not, is not owed to it."""
        flow.start = max(flow.start, self._clocks[self._policy.level(flow.priority)])


def _stalled(flow: Flow, now: float) -> bool:
    return flow.in_flight > 0 and now - flow.moved > _STALLED
