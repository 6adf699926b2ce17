"""Which machine of a cluster this one is, and where the others are."""

import ipaddress
import json
import socket
from typing import Any

from penstock.cluster.shaping.interface import run
from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument, Machine


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
