"""Traffic classes as `tc` commands: an htb queue with one class each, and u32 filters that assign packets."""

import ipaddress

from penstock.cluster.shaping.groups import Classes, TrafficClass

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
