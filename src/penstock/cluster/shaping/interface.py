"""An interface's queue as the kernel has it: read, set and removed with the system's commands for networks.

The same commands say which machine of a cluster this one is, and where the others are.
"""

import ipaddress
import json
import re
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.cluster.shaping.commands import HANDLE, Command, clear_commands
from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument, Machine

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
