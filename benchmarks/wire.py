"""How fast do arrays travel between two processes of one machine, against a plain socket?

The same bytes, in parts of 1 MiB, over loopback: a bare TCP socket that reads into one buffer again and again, the same
with Python's `ssl` over it, the wire with `token` (in the clear) and `tls` (encrypted), and, where pyzmq is installed,
ZeroMQ's own sockets without and with its CURVE encryption. The ways take turns, so that all of them meet the same
machine; medians are shown. Both processes keep freed memory, as tasks of a run do. Also processor seconds of both ends
for each GB, which other work on the machine hardly changes, the time of a call that carries nothing, and whether the
kernel of Linux encrypts.
With `--sums`: milliseconds of the sum of gradients of two workers (float32, by their number) over the wire and by gloo.
Run: python benchmarks/wire.py [--mib 512] [--repeats 5] [--sums] [--json]
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

try:
    import zmq
except ImportError:
    zmq = None  # type: ignore[assignment]

from penstock.cluster.worker.collectives import WireCollective, WireGroup
from penstock.memory import keep_freed_memory
from penstock.wire.channel import Channel
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import Credentials, Tls, kernel_tls, make_credentials

PART = 1 << 20
BUFFERS = 16
CALLS = 300
WARMING = 16
WIRE = ("token", "tls")
BARE = ("socket", "ssl")
SUMMED = (10_000, 100_000, 1_000_000, 4_000_000)


def main() -> None:
    arguments = _arguments()
    keep_freed_memory()
    if arguments.sums:
        _print_sums(measure_sums(arguments.repeats), arguments.json)
        return
    rows = measure(arguments.mib, arguments.repeats)
    if arguments.json:
        cores = os.cpu_count()
        print(json.dumps({"mib": arguments.mib, "part_bytes": PART, "cores": cores, "rows": rows}))
    else:
        _print(rows, arguments.mib)


class Sample(NamedTuple):
    """One transfer."""

    gb_per_s: float
    sender: float
    """Processor seconds for each GB, of the process that sends,"""
    receiver: float
    """and of the one that receives."""
    kernel_tls: bool = False
    """Whether the kernel encrypts."""


class Clock:
    """Times a transfer from another process to this one."""

    def __init__(self, sender: int | None, mib: int) -> None:
        self.mib = mib
        self._stat, self._bytes = Path(f"/proc/{sender}/stat"), mib * PART

    def start(self) -> None:
        self._began = self._now()

    def stop(self) -> Sample:
        wall, sender, receiver = (
            (now - then) / self._bytes * 1e9 for now, then in zip(self._now(), self._began, strict=True)
        )
        return Sample(1 / wall, sender, receiver)

    def _now(self) -> tuple[float, float, float]:
        fields = self._stat.read_text().rpartition(")")[2].split()
        sender = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), sender, time.process_time()


def measure(mib: int, repeats: int) -> list[dict[str, Any]]:
    """One row a way: GB/s, the share of the plain socket's, processor seconds, and microseconds of an empty call."""
    ways = (*BARE, *WIRE, *(("zmq", "zmq-curve") if zmq is not None else ()))
    context, found, empty = get_context("spawn"), {way: list[Sample]() for way in ways}, dict[str, float]()
    run = make_credentials(["client", "server"])
    near, far = context.Pipe()
    server = context.Process(target=serve, args=(far, run["server"].to_json()), daemon=True)
    server.start()
    addresses, clock = near.recv(), Clock(server.pid, mib)
    try:
        for _ in range(repeats + 1):
            for way in ways:
                if way in BARE:
                    sample = over_socket(addresses[way], clock, run["client"] if way == "ssl" else None)
                elif way.startswith("zmq"):
                    sample = over_zmq(addresses[way], clock)
                else:
                    sample, empty[way] = over_wire(run["client"], way, addresses[way], clock)
                found[way].append(sample)
    finally:
        near.send("end")
        server.join()
    # The first round warms up.
    medians = {way: Sample(*map(statistics.median, zip(*samples[1:], strict=True))) for way, samples in found.items()}
    return [
        {
            "way": way,
            "gb_per_s": round(middle.gb_per_s, 3),
            "of_socket": round(middle.gb_per_s / medians["socket"].gb_per_s, 3),
            "sender_cpu_s_per_gb": round(middle.sender, 2),
            "receiver_cpu_s_per_gb": round(middle.receiver, 2),
            "kernel_tls": bool(middle.kernel_tls) if way == "ssl" else None,
            "call_us": round(empty[way], 1) if way in empty else None,
        }
        for way, middle in medians.items()
    ]


def over_socket(address: tuple[str, int], clock: Clock, credentials: Credentials | None) -> Sample:
    """A bare socket; with TLS over it, if there are credentials."""
    buffer, connection = memoryview(bytearray(PART)), socket.create_connection(address)
    if credentials is not None:
        connection = Tls(credentials, WireOptions()).wrap(connection, server_side=False)
        connection.do_handshake()
    with connection:
        clock.start()
        connection.sendall(clock.mib.to_bytes(8, "little"))
        for _ in range(clock.mib):
            got = 0
            while got < PART:
                got += connection.recv_into(buffer[got:])
        return clock.stop()._replace(kernel_tls=kernel_tls(connection))


def over_zmq(address: tuple[str, bytes], clock: Clock) -> Sample:
    """ZeroMQ's sockets; with CURVE if the address has a key."""
    endpoint, key = address
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        if key:
            asking.curve_publickey, asking.curve_secretkey = zmq.curve_keypair()
            asking.curve_serverkey = key
        asking.connect(endpoint)
        asking.send(b"0")
        asking.recv()
        clock.start()
        asking.send(str(clock.mib).encode())
        for _ in range(clock.mib):
            asking.recv(copy=False)
        sample = clock.stop()
    context.term()
    return sample


def over_wire(credentials: Credentials, way: str, address: str, clock: Clock) -> tuple[Sample, float]:
    """A transfer, and microseconds of an empty call."""
    with Endpoint(credentials, options=WireOptions.model_validate({"security": way})) as post:
        post.meet("server", address)
        channel = post.channel("server")
        empty_call(channel)
        # Connections are made, and buffers, before the clock starts.
        _fetch(channel, WARMING)
        clock.start()
        _fetch(channel, clock.mib)
        return clock.stop(), 1e6 * statistics.median(empty_call(channel) for _ in range(CALLS))


def _fetch(channel: Channel, mib: int) -> None:
    got = sum(part.arrays[0].nbytes for part in channel.start(Message("parts", {"mib": mib})).parts())
    if got != mib * PART:
        raise SystemExit(f"{got:,} bytes arrived where {mib * PART:,} were asked for.")


def empty_call(channel: Channel) -> float:
    """Seconds."""
    began = time.perf_counter()
    channel.call(Message("empty"))
    return time.perf_counter() - began


def serve(pipe: Connection, credentials: str) -> None:
    """The other process: all ways at once, until told to end."""
    keep_freed_memory()
    buffers = [np.full(PART, number, np.uint8) for number in range(BUFFERS)]

    def parts(message: Message, sender: str) -> Iterator[Message]:
        for number in range(message.body["mib"]):
            yield Message("part", arrays=(buffers[number % BUFFERS],))

    own, posts = Credentials.from_json(credentials), {}
    for way in WIRE:
        posts[way] = Endpoint(own, options=WireOptions.model_validate({"security": way}))
        posts[way].serve("parts", parts)
        posts[way].serve("empty", lambda message, sender: Message("empty"))
    bare: dict[str, Any] = {} if zmq is None else serve_zmq(buffers)
    with ExitStack() as stack:
        for way in BARE:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            bare[way] = listener.getsockname()
            tls = Tls(own, WireOptions()) if way == "ssl" else None
            threading.Thread(target=send_plainly, args=(listener, buffers, tls), daemon=True).start()
        pipe.send({**bare, **{way: post.address for way, post in posts.items()}})
        pipe.recv()
    for post in posts.values():
        post.close()


def serve_zmq(buffers: list[np.ndarray[Any, Any]]) -> dict[str, tuple[str, bytes]]:
    """Sockets of ZeroMQ's that send as many parts as they are asked for, in threads of their own; their addresses."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    found: dict[str, tuple[str, bytes]] = {}
    for way in ("zmq", "zmq-curve"):
        serving, public = context.socket(zmq.ROUTER), b""
        serving.sndhwm = 0
        if way == "zmq-curve":
            public, serving.curve_secretkey = zmq.curve_keypair()
            serving.curve_server = True
        port = serving.bind_to_random_port("tcp://127.0.0.1")
        found[way] = f"tcp://127.0.0.1:{port}", public
        threading.Thread(target=_answer_zmq, args=(serving, buffers), daemon=True).start()
    return found


def _answer_zmq(serving: "zmq.Socket[bytes]", buffers: list[np.ndarray[Any, Any]]) -> None:
    while True:
        who, asked = serving.recv_multipart()
        if not int(asked):
            serving.send_multipart([who, b""])
        for number in range(int(asked)):
            serving.send_multipart([who, buffers[number % BUFFERS]], copy=False)


def send_plainly(listener: socket.socket, buffers: list[np.ndarray[Any, Any]], tls: Tls | None) -> None:
    """Serve connections of the bare kind, one after the other."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if tls is not None:
            connection = tls.wrap(connection, server_side=True)
        with connection:
            mib = int.from_bytes(connection.recv(8), "little")
            for number in range(mib):
                connection.sendall(buffers[number % BUFFERS])
            connection.recv(1)


def measure_sums(repeats: int) -> list[dict[str, Any]]:
    """One row for each size: the median milliseconds of a sum, by way."""
    context, run = get_context("spawn"), make_credentials(["worker-0", "worker-1"])
    near, far = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        other = context.Process(target=sum_with, args=(1, far, run["worker-1"].to_json(), folder, repeats), daemon=True)
        other.start()
        rows = sum_with(0, near, run["worker-0"].to_json(), folder, repeats)
        other.join()
    return rows


def sum_with(rank: int, pipe: Connection, credentials: str, folder: str, repeats: int) -> list[dict[str, Any]]:
    """Sum with the other process in every way, and time it."""
    keep_freed_memory()
    torch.set_num_threads(1)
    own, groups = Credentials.from_json(credentials), dict[str, WireGroup]()
    for way in WIRE:
        endpoint = Endpoint(own, options=WireOptions.model_validate({"security": way}))
        pipe.send(endpoint.address)
        endpoint.meet(f"worker-{1 - rank}", pipe.recv())
        groups[way] = _group(endpoint, rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2)
    rows = []
    for size in SUMMED:
        numbers = torch.full((size,), 1.0 + rank)
        ways: dict[str, Callable[[], Any]] = {"gloo": lambda numbers=numbers: dist.all_reduce(numbers)}
        ways |= {way: lambda numbers=numbers, group=group: group.start_sum(numbers)() for way, group in groups.items()}
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(4 * repeats + 1):
            for way, total in ways.items():
                numbers.fill_(1.0 + rank)
                dist.barrier()
                began = time.perf_counter()
                total()
                found[way].append(time.perf_counter() - began)
                if not bool((numbers == 3.0).all()):
                    raise SystemExit(f"{way} summed something else.")
        # The first of each makes connections.
        rows.append({"floats": size, **{way: 1e3 * statistics.median(taken[1:]) for way, taken in found.items()}})
    dist.destroy_process_group()
    return rows


def _group(endpoint: Endpoint, rank: int) -> WireGroup:
    """What a worker of a run has, without the rest of it: sums need its endpoint, its rank and its patience."""
    cluster = SimpleNamespace(failure=SimpleNamespace(patience=60.0))
    setup = SimpleNamespace(layout=SimpleNamespace(world=2), task=SimpleNamespace(rank=rank), cluster=cluster)
    member: Any = SimpleNamespace(endpoint=endpoint, setup=setup, round=0, stopped=threading.Event())
    return WireGroup(member, 1, WireCollective(member))


def _print_sums(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"cores": os.cpu_count(), "rows": rows}))
        return
    table = Table(*rows[0], title="milliseconds of a sum of two workers")
    for row in rows:
        table.add_row(f"{row['floats']:,}", *(f"{row[way]:.2f}" for way in list(row)[1:]))
    Console().print(table)


def _print(rows: list[dict[str, Any]], mib: int) -> None:
    title = f"{mib} MiB in parts of 1 MiB, loopback"
    table = Table("way", "GB/s", "of the socket", "processor s/GB", "empty call", title=title)
    for row in rows:
        cpu = f"{row['sender_cpu_s_per_gb']:.2f} + {row['receiver_cpu_s_per_gb']:.2f}"
        call = "" if row["call_us"] is None else f"{row['call_us']:.0f} µs"
        table.add_row(row["way"], f"{row['gb_per_s']:.2f}", f"{row['of_socket']:.0%}", cpu, call)
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="how much travels at a time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sums", action="store_true", help="sums of gradients instead")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
