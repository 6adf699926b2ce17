"""Which flow may send next. A policy ranks what waits at the heads of the queues; the lowest rank goes first."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Head(Protocol):
    """What a policy sees of a flow: the message at the head of its queue, and what the flow has had."""

    @property
    def arrival(self) -> int:
        """The message's place in the order of arrival, over all flows."""

    @property
    def turn(self) -> int:
        """The batch that it belongs to; lower is needed sooner."""

    @property
    def start(self) -> int:
        """Bytes that had been sent, to a flow that always had its share, when this message's turn came."""

    @property
    def priority(self) -> int:
        """Lower is more urgent."""


class Policy(NamedTuple):
    """A way to choose."""

    rank: Callable[[Head], tuple[int, ...]]
    level: Callable[[int], int]
    """Which flows share with each other, by priority: shares (`start`) are counted among those of one level."""


def _everybody(priority: int) -> int:
    return 0


def _equals(priority: int) -> int:
    return priority


POLICIES = {
    "fifo": Policy(lambda head: (head.arrival,), _everybody),
    # Start-time fair queueing: of two flows that always have something to send, neither is ever ahead by more than
    # one message of each.
    "fair": Policy(lambda head: (head.start, head.arrival), _everybody),
    "priority": Policy(lambda head: (head.priority, head.start, head.arrival), _equals),
    "turns": Policy(lambda head: (head.turn, head.priority, head.start, head.arrival), _everybody),
}
