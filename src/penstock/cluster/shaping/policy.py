"""From groups and an interface's rate to classes of traffic. Nothing here knows how they are put in place."""

from dataclasses import dataclass

from penstock.cluster.document import Machine
from penstock.cluster.shaping.groups import FlowGroups
from penstock.errors import PenstockError

REST = "rest"
_LAST = 7


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


@dataclass(frozen=True)
class Classes:
    """All classes of an interface; the last takes what belongs to no other."""

    rate: int
    """Bits per second of the interface."""
    classes: tuple[TrafficClass, ...]


def classes_of(groups: FlowGroups, machine: Machine, peers: tuple[str, ...]) -> Classes:
    """The classes of a machine's interface; `peers` are the other machines' numeric addresses."""
    if machine.nic_gbps is None:
        raise PenstockError(f"Machine {machine.name} has no nic_gbps in the cluster file: say how fast its link is.")
    whole = round(machine.nic_gbps * 1e9)
    made = []
    for group in groups.groups:
        if group.dscp is None and not peers:
            raise PenstockError(
                f"Group {group.name} is what goes to other machines, and {machine.name} has none at another address:"
                " give the machines their addresses."
            )
        where = peers if group.dscp is None else ()
        bits = (round(whole * group.share), round(whole * group.ceiling))
        made.append(TrafficClass(group.name, *bits, group.share, group.priority, group.dscp, where))
    left = 1 - sum(group.share for group in groups.groups)
    made.append(TrafficClass(REST, max(1000, round(whole * left)), whole, left, _LAST))
    return Classes(whole, tuple(made))
