"""Which flow may send next: the policies by name."""

from penstock.wire.egress import coflow
from penstock.wire.egress.policy import Policy


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
    # Of one flow the head alone is seen: what was put behind it waits for it.
    "turns": Policy(lambda head: (head.turn, head.priority, head.start, head.arrival), _everybody),
    "coflow": coflow.POLICY,
}
