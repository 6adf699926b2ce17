"""Groups of flows: how their packets are recognised, and which share of an interface they get.

From groups and an interface's rate follow classes of traffic. How these are put in place is not known here.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem, read_yaml
from penstock.hardware.cluster import ClusterDocument, Machine, Name

_REST = 0.1
"""Of the rate for what belongs to no run: people's terminals, the file system."""
_TRICKLE = 0.01
"""Of the rate for a group that others pass: its connections stay alive."""
_CLASSES = {1: ["wire"], 2: ["urgent", "ahead"], 3: ["urgent", "lists", "features"]}
"""Names of the wire's classes of packets, by their number; beyond three they are counted on."""


class FlowGroup(StrictDocument):
    """One group. When others leave some of their rate unused it may have that too, up to its ceiling."""

    name: Name
    dscp: int | None = Field(
        default=None, ge=0, le=63, description="its packets' mark; none: what goes unmarked to machines of the cluster"
    )
    share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="of the interface's rate: what the group has in any case; may be left out in strict order",
    )
    ceiling: float = Field(default=1.0, gt=0, le=1, description="of the interface's rate: what it never exceeds")
    priority: int = Field(default=1, ge=0, le=7, description="who has unused rate first; lower is sooner")


class FlowGroups(StrictDocument):
    """All groups of an interface. What the shares leave is for the rest, which comes last."""

    groups: list[FlowGroup] = Field(min_length=1, max_length=64)
    strict: bool = Field(
        default=False, description="whether a group has what all before it leave, beyond a small share of its own"
    )

    @model_validator(mode="after")
    def _check(self) -> "FlowGroups":
        names, marks = [group.name for group in self.groups], [group.dscp for group in self.groups]
        if len(set(names)) < len(names):
            raise ValueError("two groups have the same name")
        if "rest" in names:
            raise ValueError("the name rest is taken by what belongs to no group")
        if len(set(marks)) < len(marks):
            raise ValueError("two groups have the same dscp, or both have none: their packets would look alike")
        for group in self.groups:
            self._check_group(group)
        if sum(map(self.share_of, self.groups)) >= 1:
            raise ValueError("the shares leave nothing for other traffic: they must add up to less than 1")
        return self

    def share_of(self, group: FlowGroup) -> float:
        """What a group has in any case, of the interface's rate."""
        return _TRICKLE if group.share is None else group.share

    def _check_group(self, group: FlowGroup) -> None:
        if group.share is None and not self.strict:
            raise ValueError(f"group {group.name} has no share: give it one, or say strict: true")
        if self.strict and "priority" in group.model_fields_set:
            raise ValueError(f"group {group.name} has a priority, and strict order is that of the list: leave it out")
        if group.ceiling < self.share_of(group):
            raise ValueError(f"group {group.name} has a ceiling below its share")


def default_groups(cluster: ClusterDocument) -> FlowGroups:
    """What can be told apart of a cluster's traffic: the wire if it is marked, and torch's sums of gradients."""
    ours, mark = 1 - _REST, cluster.wire.dscp
    if 0 in cluster.wire.marks:
        raise PenstockError(
            "The wire's packets are marked 0, like all unmarked packets, so they cannot be told apart: set dscp or"
            " dscp_classes in the cluster file.",
            code="invalid-value",
        )
    if cluster.wire.dscp_classes:
        return _strict_groups(cluster)
    if mark is None:
        return FlowGroups(groups=[FlowGroup(name="machines", share=ours)])
    if cluster.reduce == "servers":
        # Gradients go over the wire too.
        return FlowGroups(groups=[FlowGroup(name="wire", dscp=mark, share=ours)])
    # Workers wait for each other's gradients with nothing else to do; features are asked for ahead.
    gradients = FlowGroup(name="gradients", share=ours / 3, priority=0)
    return FlowGroups(groups=[FlowGroup(name="wire", dscp=mark, share=ours * 2 / 3), gradients])


def _strict_groups(cluster: ClusterDocument) -> FlowGroups:
    """The wire's classes in their order, which is the order in which a run needs what they carry."""
    marks = cluster.wire.dscp_classes
    names = _CLASSES.get(len(marks)) or [*_CLASSES[3], *(f"class{number}" for number in range(4, len(marks) + 1))]
    groups = [FlowGroup(name=name, dscp=mark) for name, mark in zip(names, marks, strict=True)]
    if cluster.reduce == "all-reduce":
        groups.insert(0, FlowGroup(name="gradients"))
    return FlowGroups(groups=groups, strict=True)


def read_groups(path: Path) -> FlowGroups:
    """Groups that someone has written down."""
    fields = read_yaml(path, "a file with groups of flows")
    try:
        return FlowGroups.model_validate(fields)
    except ValidationError as error:
        raise PenstockError(f"{path}: {first_problem(error)}.", code="invalid-document") from None


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
