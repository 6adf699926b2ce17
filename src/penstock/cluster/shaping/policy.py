"""From groups and an interface's rate to classes of traffic. Nothing here knows how they are put in place."""

from dataclasses import dataclass

from penstock.cluster.shaping.groups import FlowGroups
from penstock.errors import PenstockError
from penstock.hardware.cluster import Machine

REST = "rest"
_LEAST, _LAST = 1000, 7
"""The kernel knows no later priority: in strict order the groups from the eighth on share it with the rest."""
_STRICT_REST = 0.05
"""Of the rate, for the rest behind groups in strict order."""
_QUEUE_SECONDS, _LEAST_QUEUE = 0.02, 512 << 10
"""What may wait in strict order: so long at the whole rate, but room for some of the kernel's bundles of packets."""


@dataclass(frozen=True)
class TrafficClass:
    """Packets that share a rate. Bits are per second."""

    name: str
    rate: int
    """Bits it has in any case."""
    ceiling: int
    """Bits it never exceeds."""
    share: float
    """Its part of the whole, by which classes of one priority divide what is unused."""
    priority: int
    dscp: int | None = None
    addresses: tuple[str, ...] = ()
    """Where its packets go, if no mark tells them apart."""
    queue: int | None = None
    """Bytes that may wait; None: as many as the kernel likes."""


@dataclass(frozen=True)
class Classes:
    """All classes of an interface; the last takes what belongs to no other."""

    rate: int
    """Bits per second of the interface."""
    classes: tuple[TrafficClass, ...]


def classes_of(groups: FlowGroups, machine: Machine, peers: tuple[str, ...]) -> Classes:
    """The classes of a machine's interface; `peers` are the other machines' numeric addresses."""
    if machine.nic_gbps is None:
        raise PenstockError(
            f"Machine {machine.name} has no nic_gbps in the cluster file: add the speed of its link.",
            code="option-missing",
        )
    whole = round(machine.nic_gbps * 1e9)
    # The kernel would let megabytes wait behind more urgent ones, where no process can put them in order any more.
    queue = max(_LEAST_QUEUE, round(whole / 8 * _QUEUE_SECONDS)) if groups.strict else None
    made = []
    for place, group in enumerate(groups.groups):
        if group.dscp is None and not peers:
            raise PenstockError(
                f"Group {group.name} is for traffic to other machines, but no other machine has an address different"
                f" from that of {machine.name}: set the machines' addresses.",
                code="option-missing",
            )
        where = peers if group.dscp is None else ()
        share = groups.share_of(group)
        bits = (round(whole * share), round(whole * group.ceiling))
        # What no share has claimed goes to the first priority that wants it: strict order leaves nearly all unclaimed.
        weight, priority = (1.0, min(place, _LAST)) if groups.strict else (share, group.priority)
        made.append(TrafficClass(group.name, *bits, weight, priority, group.dscp, where, queue))
    left = 1 - sum(map(groups.share_of, groups.groups))
    rest = min(left, _STRICT_REST) if groups.strict else left
    made.append(TrafficClass(REST, max(_LEAST, round(whole * rest)), whole, rest, _LAST))
    return Classes(whole, tuple(made))
