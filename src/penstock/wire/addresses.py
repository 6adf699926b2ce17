"""The address of an endpoint: tcp://HOST:PORT, with one port for each class of packets, most urgent first."""

import re
from collections.abc import Sequence

ADDRESS = re.compile(r"tcp://[^\s/,]+:[0-9]{1,5}(,[0-9]{1,5}){0,7}")


def joined(addresses: Sequence[str]) -> str:
    """One address for sockets of one host."""
    ports = [address.rpartition(":")[2] for address in addresses[1:]]
    return ",".join([addresses[0], *ports])


def endpoint(address: str, place: int) -> str:
    """The address of one of the ports; of the last one if there are fewer."""
    host, _, ports = address.rpartition(":")
    each = ports.split(",")
    return f"{host}:{each[min(place, len(each) - 1)]}"
