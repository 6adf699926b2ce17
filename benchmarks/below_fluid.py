"""How near are flow times to a fluid network, and to one whose transport is known?

Hosts in a box (hosts.py) with links of one rate, packet by packet, and bounded queues at the switch's ports:

- single: one flow of 10 kB to 10 MB over a new connection, on the switch and over a link whose round trip is longer;
- incast: 2 to 15 senders into one port with a small buffer, over connections that are open and have not sent yet;
- permutation: the hosts of one rack send to those of another, over links of equal cost that the kernel hashes onto.

Each is predicted with `penstock.simulate`, as a fluid alone and with a transport. A rate is what the kernel's rate
leaves for payload. The error of a single flow is that of its median over all rounds; of an incast and of a permutation,
that of the median and of the 95th percentile over rounds, beside those over 32 seeds.
Run, as root: python benchmarks/below_fluid.py [--rate 100] [--rounds 15] [--out below_fluid.json] [--json]
"""

import argparse
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hosts import Host, bound_ports, hosts, joined_by_relay, shown_on_hosts, take_turns_first, two_racks
from penstock.hardware.cluster import TransportOptions
from penstock.hardware.machines import Network, racks
from penstock.simulate import simulate
from penstock.simulate.transport import hashed_again
from penstock.simulate.workload import WorkloadBuilder

PAYLOAD, PACKET, HEADER = 1448, 1514, 1500
"""Bytes of a packet: for the program, on the wire, and as IP counts them."""
PATIENCE_S = 60.0


def main() -> int:
    return shown_on_hosts("below the fluid", _options(), measure)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    take_turns_first()
    rows = list[dict[str, Any]]()
    if "single" in options.parts:
        rows += singles(options)
    if "incast" in options.parts:
        rows += incasts(options)
    if "permutation" in options.parts:
        rows += permutations(options)
    return [*rows, *_errors(rows)]


@dataclass(frozen=True)
class Sent:
    """A flow to carry out: between which hosts, to which address, and its bytes."""

    source: Host
    target: Host
    address: str
    size: int


def singles(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One flow at a time over new connections."""
    with hosts([options.rate] * 2) as bed:
        for host in bed:
            bound_ports(host, 4 << 20)
        yield from _single(bed, bed[1].address, "switch", options.base_us / 4, 2, options)
        for delay_ms in options.delays_ms:
            with joined_by_relay(bed[0], bed[1], options.rate, delay_ms / 1e3) as (_, address):
                hop_us = delay_ms * 1e3 + options.base_us / 2
                yield from _single(bed, address, f"{2 * delay_ms:g} ms", hop_us, 1, options)


def _single(
    bed: Sequence[Host], address: str, where: str, hop_us: float, hops: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    for size in options.sizes:
        took = [
            timed([Sent(bed[0], bed[1], address, size)], True, options.congestion)[0] for _ in range(options.rounds)
        ]
        network = _star(2, options.rate, TransportOptions(hop_us=hop_us * hops / 2, packet_bytes=PAYLOAD))
        fluid, known = (_predicted(each, [(0, 1)], size)[0] for each in (network.as_fluid(), network))
        yield _row("single", f"{where}, {size / 1e3:g} kB", fluid, known, statistics.median(took))


def incasts(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Many senders into one port."""
    most = max(options.senders)
    with hosts([options.rate] * (most + 1)) as bed:
        for buffer in options.buffers:
            for host in bed:
                bound_ports(host, buffer)
            for size in options.blocks:
                for count in options.senders:
                    flows = [Sent(bed[k + 1], bed[0], bed[0].address, size) for k in range(count)]
                    took = [timed(flows, False, options.congestion) for _ in range(options.rounds)]
                    network = _star(
                        count + 1,
                        options.rate,
                        TransportOptions(
                            hop_us=options.base_us / 4, packet_bytes=PAYLOAD, buffer_kb=buffer / 1e3 * PAYLOAD / PACKET
                        ),
                    )
                    ends = [(k + 1, 0) for k in range(count)]
                    what = f"{count} x {size / 1e3:g} kB into {buffer / 1024:g} KiB"
                    yield from _over_rounds("incast", what, network, ends, size, took)


def permutations(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each host of a rack sends to one of the other rack, over links of equal cost."""
    count, lanes = options.hosts, options.lanes
    with two_racks(count, options.rate, lanes) as bed:
        for size in options.shuffled:
            flows = [Sent(bed[k], bed[count + k], bed[count + k].address, size) for k in range(count)]
            took = [timed(flows, True, options.congestion) for _ in range(2 * options.rounds)]
            transport = TransportOptions(hop_us=options.base_us / 6, packet_bytes=PAYLOAD, uplinks=lanes)
            rates = [_goodput(options.rate)] * (2 * count)
            network = racks([0] * count + [1] * count, rates, rates, count / lanes, transport=transport)
            ends = [(k, count + k) for k in range(count)]
            yield from _over_rounds("permutation", f"{count} x {size / 1e3:g} kB", network, ends, size, took)


def _over_rounds(
    part: str, what: str, network: Network, ends: list[tuple[int, int]], size: int, took: list[list[float]]
) -> Iterator[dict[str, Any]]:
    """Median and 95th percentile of the last flow's end."""
    last = [max(each) for each in took]
    fluid = max(_predicted(network.as_fluid(), ends, size))
    known = [max(_predicted(each, ends, size)) for each in hashed_again(network)]
    for name, level in (("median", 0.5), ("p95", 0.95)):
        found, measured = (float(np.quantile(each, level, method="higher")) for each in (known, last))
        yield _row(part, f"{what}, {name}", fluid, found, measured)


def _row(part: str, what: str, fluid: float, known: float, measured: float) -> dict[str, Any]:
    return {
        "part": part,
        "what": what,
        "fluid, ms": fluid * 1e3,
        "predicted, ms": known * 1e3,
        "measured, ms": measured * 1e3,
        "fluid off by, %": 100 * (fluid / measured - 1),
        "predicted off by, %": 100 * (known / measured - 1),
    }


def _errors(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Median and 95th percentile of the errors of each part."""
    for part in dict.fromkeys(row["part"] for row in rows):
        for name, level in (("median", 0.5), ("95th percentile", 0.95)):
            errors = {
                key: float(np.quantile([abs(row[key]) for row in rows if row["part"] == part], level))
                for key in ("fluid off by, %", "predicted off by, %")
            }
            yield {**dict.fromkeys(rows[0], ""), "part": part, "what": f"error, {name}", **errors}


# Predictions.


def _goodput(rate_mbit: float) -> float:
    """Bytes of payload a second."""
    return rate_mbit * 1e6 / 8 * PAYLOAD / PACKET


def _star(count: int, rate_mbit: float, transport: TransportOptions) -> Network:
    rates = [_goodput(rate_mbit)] * count
    return racks([0] * count, rates, rates, transport=transport)


def _predicted(network: Network, ends: list[tuple[int, int]], size: int) -> list[float]:
    """Seconds of flows that begin together between these machines."""
    building = WorkloadBuilder()
    for number, _ in enumerate(ends):
        source, target = (building.task(f"{name}{number}", name, 0.0) for name in ("from", "to"))
        building.flow(source, target, size, "data")
    load = building.build()
    found = simulate(load, network, np.array(ends).reshape(-1), 1, "fair")
    return [float(each) for each in found.ends[0, load.tasks :]]


# Measurements: one thread sends and receives for all, so that no thread waits for another.


def timed(flows: Sequence[Sent], fresh: bool, congestion: str = "cubic") -> list[float]:
    """Seconds of flows that begin together: over `fresh` connections, or over open ones that have not sent yet."""
    with ExitStack() as opened:
        senders, receivers = list[socket.socket](), list[socket.socket]()
        listening = list[socket.socket]()
        for flow in flows:
            with flow.target.entered():
                listener = opened.enter_context(_socket(congestion))
            listener.bind((flow.address, 0))
            listener.listen(1)
            listener.setblocking(False)
            with flow.source.entered():
                sender = opened.enter_context(_socket(congestion))
            sender.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, 2 * flow.size + (1 << 20))
            listening.append(listener)
            senders.append(sender)
        if not fresh:
            for sender, listener in zip(senders, listening, strict=True):
                sender.connect(listener.getsockname())
                listener.setblocking(True)
                receivers.append(opened.enter_context(listener.accept()[0]))
            time.sleep(_SETTLED_S)
        payloads = [bytes(flow.size) for flow in flows]
        began = list[float]()
        for number, sender in enumerate(senders):
            sender.setblocking(False)
            began.append(time.monotonic())
            if fresh:
                sender.connect_ex(listening[number].getsockname())
            else:
                sender.send(payloads[number])
        ended = _received(senders, listening, receivers, payloads, opened)
    return [end - begin for begin, end in zip(began, ended, strict=True)]


_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_SETTLED_S = 0.02


def _socket(congestion: str) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 8 << 20)
    return found


def _received(
    senders: list[socket.socket],
    listening: list[socket.socket],
    receivers: list[socket.socket],
    payloads: list[bytes],
    opened: ExitStack,
) -> list[float]:
    """When each flow's last byte had come; sends what is to be sent once a connection is there."""
    left, ended = [len(each) for each in payloads], [0.0] * len(payloads)
    with selectors.DefaultSelector() as ready:
        for number, receiver in enumerate(receivers):
            ready.register(receiver, selectors.EVENT_READ, ("data", number))
        if not receivers:
            for number, (sender, listener) in enumerate(zip(senders, listening, strict=True)):
                ready.register(sender, selectors.EVENT_WRITE, ("open", number))
                ready.register(listener, selectors.EVENT_READ, ("call", number))
        room, until = bytearray(1 << 20), time.monotonic() + PATIENCE_S
        while any(left):
            if time.monotonic() > until:
                raise TimeoutError(f"Some of {len(payloads)} flows took longer than {PATIENCE_S:g} s.")
            for key, _ in ready.select(1.0):
                what, number = key.data
                if what == "open":
                    ready.unregister(senders[number])
                    senders[number].send(payloads[number])
                elif what == "call":
                    ready.unregister(listening[number])
                    receiver = opened.enter_context(listening[number].accept()[0])
                    ready.register(receiver, selectors.EVENT_READ, ("data", number))
                else:
                    left[number] -= key.fileobj.recv_into(room)  # type: ignore[union-attr]
                    if left[number] == 0:
                        ended[number] = time.monotonic()
                        ready.unregister(key.fileobj)
    return ended


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {
        "sizes": [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000],
        "senders": [2, 4, 8, 15],
        "buffers": [16 << 10, 32 << 10, 64 << 10],
        "blocks": [15_000, 60_000, 250_000],
        "shuffled": [250_000, 1_000_000],
    }
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s of every link")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--congestion", choices=["cubic", "reno"], default="cubic")
    parser.add_argument("--base-us", type=float, default=100.0, help="round trip of an idle switch, in microseconds")
    parser.add_argument("--delays-ms", type=_floats, default=[2.5, 10.0], help="one way, of the relayed links")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=_integers, default=default)
    parser.add_argument("--hosts", type=int, default=4, help="of each rack")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["single", "incast", "permutation"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
