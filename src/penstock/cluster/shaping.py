"""Shares of a network interface for groups of flows, kept by the kernel: for operators, and never needed by a run.

Packets are told apart by their DSCP mark, which both ends of the wire set (`wire.dscp` of a cluster file, or
`wire.dscp_classes` by urgency, which are then served in strict order). Ports would not do: the system chooses them at
every start. What torch's process groups send has no mark, and is known by going to another machine of the cluster.
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

from pydantic import Field, ValidationError, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem, read_yaml
from penstock.hardware.cluster import ClusterDocument, Machine, Name

# Groups of flows: how their packets are recognised, and which share of an interface they get.
#
# From groups and an interface's rate follow classes of traffic. How these are put in place is not known here.

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


# Traffic classes as `tc` commands: an htb queue with one class each, and u32 filters that assign packets.

HANDLE = "5053:"
"""The root queue's number, by which it is known as ours: "PS"."""
_ROOT, _FIRST = 1, 16
_BURST_SECONDS, _LEAST_BURST = 0.001, 16 << 10
"""What a class may send at once, so that timers need not be finer than this."""
_QUANTUM, _LEAST_QUANTUM = 200_000, 1_600
"""Bytes a class of the whole share would have in a turn, and what any has: a packet."""
_VERSIONS = {4: "ip", 6: "ipv6"}

Command = list[str]


def set_commands(classes: Classes, device: str) -> list[Command]:
    """What gives an interface these classes. It must have no queue of anybody's."""
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
    """What removes an interface's queue, with its classes; it has then what the kernel gives any."""
    return [["tc", "qdisc", "delete", "dev", device, "root"]]


def class_number(place: int) -> str:
    """The number, in tc's hexadecimal digits, of the class in this place."""
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
    """A mark counts before an address. One preference holds filters of one protocol, so there are four."""
    found = []
    if each.dscp is not None:
        # Of the byte the lower two bits are not the mark's.
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


# An interface's queue as the kernel has it: read, set and removed with the system's commands for networks.
#
# The same commands say which machine of a cluster this one is, and where the others are.

_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_KERNELS_OWN = "0:"
"""The handle of a queue that nobody has set."""
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
    """Of a queue of ours."""

    @property
    def ours(self) -> bool:
        """Whether our commands made it."""
        return self.kind == "htb" and self.handle == HANDLE

    @property
    def made(self) -> bool:
        """Whether anybody made it; what the kernel gives any interface need not be removed, and cannot."""
        return self.handle != _KERNELS_OWN

    @property
    def foreign(self) -> bool:
        """Whether someone else made it."""
        return self.made and not self.ours


def look(device: str) -> InterfaceQueue:
    """What an interface has now."""
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
    """Run commands that change an interface; if one fails, it is left with the kernel's own queue."""
    try:
        for command in commands:
            run(command)
    except BaseException:
        # Half of the classes would send the other half's packets to the rest.
        with suppress(PenstockError):
            if look(device).ours:
                run(clear_commands(device)[0])
        raise


def refuse_foreign(queue: InterfaceQueue, device: str) -> None:
    """A queue that someone else has set is theirs."""
    if queue.foreign:
        raise PenstockError(
            f"{device} has a {queue.kind} queue ({queue.handle}) that penstock did not make: remove it yourself,"
            " or add --force.",
            code="in-use",
        )


def parse_classes(text: str) -> tuple[ClassCount, ...]:
    """The classes in tc's own words, in order of their numbers (tc has no JSON for them)."""
    found = []
    for block in re.split(r"\n(?=class )", text):
        match = _CLASS.match(block)
        if match:
            number = match["id"].partition(":")[2]
            counts = (int(match[name]) for name in ("bytes", "packets", "dropped", "overlimits"))
            found.append(ClassCount(number, match["rate"], match["ceiling"], *counts))
    return tuple(sorted(found, key=lambda each: int(each.number, 16)))


def run(command: Sequence[str]) -> str:
    """Run `tc` or `ip`; what it prints."""
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
    """The numeric addresses of the other machines, names looked up; those of this machine are none."""
    own = _numeric(machine.address)
    found = {_numeric(other.address) for other in cluster.machines if other.name != machine.name}
    remote = [address for address in found if address != own and not ipaddress.ip_address(address).is_loopback]
    return tuple(sorted(remote))


def own_address(machine: Machine) -> tuple[str, ...]:
    """A machine's numeric address, where a router's packets go on their way to it; none on loopback."""
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
