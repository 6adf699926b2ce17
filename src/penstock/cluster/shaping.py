"""Shares of a network interface for groups of flows, enforced by the kernel: for operators; runs do not need it.

Packets are distinguished by their DSCP mark, which both ends of the wire set (`wire.dscp` of a cluster file, or
`wire.dscp_classes` by urgency, which are then served in strict order). Ports would not do: the system chooses them at
every start. Traffic of torch's process groups has no mark, and is recognised by its destination, another machine of the
cluster.
"""

import ipaddress
import json
import re
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, read_yaml, validated
from penstock.hardware.cluster import ClusterDocument, Machine, Name

# Groups of flows: how their packets are recognised, and their shares of an interface. From groups and an interface's
# rate follow classes of traffic.

_REST = 0.1
"""The share of the rate for traffic outside runs: terminals, the file system."""
_TRICKLE = 0.01
"""The share of the rate for a group behind others in strict order, which keeps its connections alive."""
_CLASSES = {1: ["wire"], 2: ["urgent", "ahead"], 3: ["urgent", "lists", "features"]}
"""Names of the wire's packet classes, by their number; beyond three they are numbered."""


class FlowGroup(StrictDocument):
    """One group of flows. It may use rate that others leave unused, up to its ceiling."""

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
    """All groups of an interface. The remaining share is for other traffic, which comes last."""

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
        """A group's guaranteed share of the interface's rate."""
        return _TRICKLE if group.share is None else group.share

    def _check_group(self, group: FlowGroup) -> None:
        if group.share is None and not self.strict:
            raise ValueError(f"group {group.name} has no share: give it one, or say strict: true")
        if self.strict and "priority" in group.model_fields_set:
            raise ValueError(f"group {group.name} has a priority, and strict order is that of the list: leave it out")
        if group.ceiling < self.share_of(group):
            raise ValueError(f"group {group.name} has a ceiling below its share")


def default_groups(cluster: ClusterDocument) -> FlowGroups:
    """The groups of a cluster's traffic that can be distinguished: the wire if it is marked, and torch's sums of
    gradients.
    """
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
        # Gradients are sent over the wire too.
        return FlowGroups(groups=[FlowGroup(name="wire", dscp=mark, share=ours)])
    # Workers wait idly for each other's gradients, while features are requested ahead.
    gradients = FlowGroup(name="gradients", share=ours / 3, priority=0)
    return FlowGroups(groups=[FlowGroup(name="wire", dscp=mark, share=ours * 2 / 3), gradients])


def _strict_groups(cluster: ClusterDocument) -> FlowGroups:
    """The wire's classes in their order of urgency."""
    marks = cluster.wire.dscp_classes
    names = _CLASSES.get(len(marks)) or [*_CLASSES[3], *(f"class{number}" for number in range(4, len(marks) + 1))]
    groups = [FlowGroup(name=name, dscp=mark) for name, mark in zip(names, marks, strict=True)]
    if cluster.reduce == "all-reduce":
        groups.insert(0, FlowGroup(name="gradients"))
    return FlowGroups(groups=groups, strict=True)


def read_groups(path: Path) -> FlowGroups:
    """The groups in a user's file."""
    fields = read_yaml(path, "a file with groups of flows")
    return validated(FlowGroups, fields, str(path))


REST = "rest"
_LEAST, _LAST = 1000, 7
"""The kernel has no later priority: in strict order the groups from the eighth on share it with other traffic."""
_STRICT_REST = 0.05
"""The share of the rate for other traffic behind groups in strict order."""
_QUEUE_SECONDS, _LEAST_QUEUE = 0.02, 512 << 10
"""Bounds of a queue in strict order: seconds at the whole rate, and at least room for some of the kernel's packet
bundles.
"""


@dataclass(frozen=True)
class TrafficClass:
    """Packets that share a rate. Bits are per second."""

    name: str
    rate: int
    """Guaranteed bits."""
    ceiling: int
    """Maximum bits."""
    share: float
    """Its weight, by which classes of one priority divide unused rate."""
    priority: int
    dscp: int | None = None
    addresses: tuple[str, ...] = ()
    """Destinations of its packets, if no mark identifies them."""
    queue: int | None = None
    """The most bytes that may wait; None: the kernel's default."""


@dataclass(frozen=True)
class Classes:
    """All classes of an interface; the last is for unclassified packets."""

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
    # By default the kernel would queue megabytes behind more urgent traffic, where processes can no longer reorder
    # them.
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
        # Unclaimed rate goes to the first priority that wants it: strict order leaves nearly all unclaimed.
        weight, priority = (1.0, min(place, _LAST)) if groups.strict else (share, group.priority)
        made.append(TrafficClass(group.name, *bits, weight, priority, group.dscp, where, queue))
    left = 1 - sum(map(groups.share_of, groups.groups))
    rest = min(left, _STRICT_REST) if groups.strict else left
    made.append(TrafficClass(REST, max(_LEAST, round(whole * rest)), whole, rest, _LAST))
    return Classes(whole, tuple(made))


# Traffic classes as `tc` commands: an htb queue with one class each, and u32 filters that assign packets.

HANDLE = "5053:"
"""The root queue's handle, which identifies it as ours: "PS"."""
_ROOT, _FIRST = 1, 16
_BURST_SECONDS, _LEAST_BURST = 0.001, 16 << 10
"""The largest burst of a class, in seconds at its rate and in bytes, so that timers need not be finer."""
_QUANTUM, _LEAST_QUANTUM = 200_000, 1_600
"""Bytes per turn of a class with the whole share, and the least of any: a packet."""
_VERSIONS = {4: "ip", 6: "ipv6"}

Command = list[str]


def set_commands(classes: Classes, device: str) -> list[Command]:
    """Commands that give an interface these classes. It must not have a queue that somebody set."""
    rest = class_number(len(classes.classes) - 1)
    queue = ["qdisc", "add", "dev", device, "root", "handle", HANDLE, "htb", "default", rest]
    whole = _class(device, HANDLE, f"{_ROOT:x}", classes.rate, classes.rate)
    made = [["tc", *queue], ["tc", *whole]]
    for place, each in enumerate(classes.classes):
        made.append(["tc", *_leaf(device, place, each)])
        if each.queue is not None:
            leaf = ["qdisc", "add", "dev", device, "parent", f"{HANDLE}{class_number(place)}"]
            made.append(["tc", *leaf, "bfifo", "limit", str(each.queue)])
    for place, each in enumerate(classes.classes):
        made += [["tc", *words] for words in _filters(device, place, each)]
    return made


def clear_commands(device: str) -> list[Command]:
    """Commands that remove an interface's queue with its classes, which restores the kernel's default."""
    return [["tc", "qdisc", "delete", "dev", device, "root"]]


def class_number(place: int) -> str:
    """The number, in tc's hexadecimal digits, of the class at this position."""
    return f"{_FIRST + place:x}"


def _leaf(device: str, place: int, each: TrafficClass) -> Command:
    quantum = max(_LEAST_QUANTUM, round(_QUANTUM * each.share))
    words = _class(device, f"{HANDLE}{_ROOT:x}", class_number(place), each.rate, each.ceiling)
    return [*words, "prio", str(each.priority), "quantum", str(quantum)]


def _class(device: str, parent: str, number: str, rate: int, ceiling: int) -> Command:
    return [
        *("class", "add", "dev", device, "parent", parent, "classid", f"{HANDLE}{number}", "htb"),
        *("rate", f"{rate}bit", "ceil", f"{ceiling}bit", "burst", _burst(rate), "cburst", _burst(ceiling)),
    ]


def _burst(bits: int) -> str:
    return f"{max(_LEAST_BURST, round(bits / 8 * _BURST_SECONDS))}b"


def _filters(device: str, place: int, each: TrafficClass) -> list[Command]:
    """Filters of a class. Marks take precedence over addresses. One preference holds filters of one protocol, so there
    are four.
    """
    found = []
    if each.dscp is not None:
        # The lower two bits of the byte are not part of the mark.
        mark = [f"0x{each.dscp << 2:02x}", "0xfc"]
        found.append((1, "ip", ["ip", "dsfield", *mark]))
        found.append((2, "ipv6", ["ip6", "priority", *mark]))
    for address in each.addresses:
        version = ipaddress.ip_address(address).version
        whole = f"{address}/{32 if version == 4 else 128}"
        found.append((3 if version == 4 else 4, _VERSIONS[version], ["ip" if version == 4 else "ip6", "dst", whole]))
    return [
        [
            *("filter", "add", "dev", device, "parent", HANDLE, "protocol", protocol, "prio", str(preference)),
            *("u32", "match", *match, "flowid", f"{HANDLE}{class_number(place)}"),
        ]
        for preference, protocol, match in found
    ]


# An interface's queue as the kernel has it: read, set and removed with `tc` and `ip`. The same commands show which
# machine of a cluster this one is, and where the others are.

_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_KERNELS_OWN = "0:"
"""The handle of the kernel's default queue."""
_CLASS = re.compile(
    r"class htb (?P<id>\S+) .*?rate (?P<rate>\S+) ceil (?P<ceiling>\S+).*?"
    r"Sent (?P<bytes>\d+) bytes (?P<packets>\d+) pkt \(dropped (?P<dropped>\d+), overlimits (?P<overlimits>\d+)",
    re.DOTALL,
)


@dataclass(frozen=True)
class ClassCount:
    """A class as the kernel counts it."""

    number: str
    rate: str
    ceiling: str
    bytes: int
    packets: int
    dropped: int
    overlimits: int
    """How often a packet had to wait for its class's rate."""


@dataclass(frozen=True)
class InterfaceQueue:
    """The queue that a network interface has."""

    kind: str
    handle: str
    classes: tuple[ClassCount, ...]
    """The classes of a queue of ours."""

    @property
    def ours(self) -> bool:
        """Whether our commands made it."""
        return self.kind == "htb" and self.handle == HANDLE

    @property
    def made(self) -> bool:
        """Whether anyone set it; the kernel's default queue cannot and need not be removed."""
        return self.handle != _KERNELS_OWN

    @property
    def foreign(self) -> bool:
        """Whether someone else made it."""
        return self.made and not self.ours


def look(device: str) -> InterfaceQueue:
    """The current queue of an interface."""
    if not _DEVICE.fullmatch(device):
        raise PenstockError(
            f"{device!r} is not the name of a network interface: `ip link` lists them.", code="unknown-name"
        )
    found: list[dict[str, Any]] = json.loads(run(["tc", "-j", "qdisc", "show", "dev", device]) or "[]")
    root = next((each for each in found if each.get("root")), {"kind": "noqueue", "handle": _KERNELS_OWN})
    queue = InterfaceQueue(str(root["kind"]), str(root["handle"]), ())
    if not queue.ours:
        return queue
    return InterfaceQueue(queue.kind, queue.handle, parse_classes(run(["tc", "-s", "class", "show", "dev", device])))


def carry_out(device: str, commands: Sequence[Command]) -> None:
    """Run commands that change an interface; if one fails, the kernel's default queue is restored."""
    try:
        for command in commands:
            run(command)
    except BaseException:
        # With only some of the classes, packets of the others would count as other traffic.
        with suppress(PenstockError):
            if look(device).ours:
                run(clear_commands(device)[0])
        raise


def refuse_foreign(queue: InterfaceQueue, device: str) -> None:
    """Refuse to replace a queue that someone else has set."""
    if queue.foreign:
        raise PenstockError(
            f"{device} has a {queue.kind} queue ({queue.handle}) that penstock did not make: remove it yourself,"
            " or add --force.",
            code="in-use",
        )


def parse_classes(text: str) -> tuple[ClassCount, ...]:
    """The classes in tc's text output, in order of their numbers (tc has no JSON for them)."""
    found = []
    for block in re.split(r"\n(?=class )", text):
        match = _CLASS.match(block)
        if match:
            number = match["id"].partition(":")[2]
            counts = (int(match[name]) for name in ("bytes", "packets", "dropped", "overlimits"))
            found.append(ClassCount(number, match["rate"], match["ceiling"], *counts))
    return tuple(sorted(found, key=lambda each: int(each.number, 16)))


def run(command: Sequence[str]) -> str:
    """Run `tc` or `ip`; returns what it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PenstockError(
            f"{command[0]} cannot be run ({error.strerror}): install iproute2.", code="not-installed"
        ) from None
    if done.returncode == 0:
        return done.stdout
    said = " ".join((done.stderr or done.stdout).split()).rstrip(".")
    if "Operation not permitted" in said:
        raise PenstockError(f"`{' '.join(command)}` is not permitted: run penstock net as root.", code="not-permitted")
    if "Cannot find device" in said or said.startswith("Device "):
        raise PenstockError(f"There is no such network interface ({said}): `ip link` lists them.", code="unknown-name")
    raise PenstockError(f"`{' '.join(command)}` failed: {said}.", code="external-failure")


def machine_of(cluster: ClusterDocument, name: str | None, device: str) -> Machine:
    """The machine of that name; without one, the machine whose address the interface has."""
    names = ", ".join(machine.name for machine in cluster.machines)
    if name is not None:
        for machine in cluster.machines:
            if machine.name == name:
                return machine
        raise PenstockError(f"The cluster has no machine {name!r}: it has {names}.", code="unknown-name")
    found: list[dict[str, Any]] = json.loads(run(["ip", "-j", "address", "show", "dev", device]) or "[]")
    own = {str(info.get("local")) for each in found for info in each.get("addr_info", [])}
    for machine in cluster.machines:
        if machine.address in own:
            return machine
    raise PenstockError(
        f"{device} does not have the address of any machine: name this machine with --machine ({names}).",
        code="option-missing",
    )


def peers_of(cluster: ClusterDocument, machine: Machine) -> tuple[str, ...]:
    """The numeric addresses of the other machines, with names resolved; this machine's own are left out."""
    own = _numeric(machine.address)
    found = {_numeric(other.address) for other in cluster.machines if other.name != machine.name}
    remote = [address for address in found if address != own and not ipaddress.ip_address(address).is_loopback]
    return tuple(sorted(remote))


def own_address(machine: Machine) -> tuple[str, ...]:
    """A machine's numeric address; empty for loopback."""
    own = _numeric(machine.address)
    return () if ipaddress.ip_address(own).is_loopback else (own,)


def _numeric(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise PenstockError(
            f"The address {address!r} of a machine cannot be resolved ({error.strerror}): correct it in the cluster"
            " file.",
            code="peer-lost",
        ) from None
