"""What a policy is: it ranks what waits at the heads of the queues, and the lowest rank goes first."""

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
