"""Which flow may send next: what a policy is, and the policies by name.

A policy ranks what waits at the heads of the queues, and the lowest rank goes first.
"""

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
    """Chooses which flow may send next."""

    rank: Callable[[Head], tuple[int, ...]]
    level: Callable[[int], int]
    """Which flows share with each other, by priority: shares (`start`) are counted among those of one level."""
    within: bool = False
    """Whether earlier turns also go first within a flow, and large answers are cut so that they can."""


def _everybody(priority: int) -> int:
    return 0


def _equals(priority: int) -> int:
    return priority


URGENT = 0
"""The last priority of what is not made ahead."""


def _coflow_rank(head: Head) -> tuple[int, ...]:
    """Coflows in strict order: first what workers wait for with nothing else to do, then batches in their order.

    Gradients, weights, embeddings and the controller's messages (priority 0 and below) pass before lists and features,
    which are asked for ahead. Of those, all that an earlier batch needs goes before anything of a later one; of one
    batch, draws before rows, since rows are known when the draws are there. Flows of one rank share by bytes: workers
    train in step, so that the batch of one is needed when the others' are. Nothing is starved for long: whatever is
    ahead belongs to a step that ends, and the next step needs what waited.
    """
    ahead = int(head.priority > URGENT)
    return ahead, head.turn, head.priority, head.start, head.arrival


POLICIES = {
    "fifo": Policy(lambda head: (head.arrival,), _everybody),
    # Start-time fair queueing: of two flows that always have something to send, neither is ever ahead by more than
    # one message of each.
    "fair": Policy(lambda head: (head.start, head.arrival), _everybody),
    "priority": Policy(lambda head: (head.priority, head.start, head.arrival), _equals),
    # Of one flow the head alone is seen: what was put behind it waits for it.
    "turns": Policy(lambda head: (head.turn, head.priority, head.start, head.arrival), _everybody),
    "coflow": Policy(_coflow_rank, _equals, within=True),
}
