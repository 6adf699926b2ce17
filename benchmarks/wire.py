"""How fast do arrays travel between two processes of one machine, against a plain socket?

The same bytes, in parts of 1 MiB, over loopback: a bare TCP socket that reads into one buffer again and again, the wire
with `token` (in the clear), `aes` and `curve` (encrypted), and, where pyzmq is installed, ZeroMQ's own sockets without
and with its CURVE encryption. The ways take turns, so that all of them meet the same machine; medians are shown. Both
processes keep freed memory, as tasks of a run do. Also the time of a call that carries nothing.
Run: python benchmarks/wire.py [--mib 512] [--repeats 5] [--json]
"""

import argparse
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

try:
    import zmq
except ImportError:
    zmq = None  # type: ignore[assignment]

from penstock.memory import keep_freed_memory
from penstock.wire import Channel, Credentials, Endpoint, Message, WireOptions, make_credentials

PART = 1 << 20
BUFFERS = 16
CALLS = 300
WIRE = ("token", "aes", "curve")


def main() -> None:
    arguments = _arguments()
    keep_freed_memory()
    rows = measure(arguments.mib, arguments.repeats)
    if arguments.json:
        cores = os.cpu_count()
        print(json.dumps({"mib": arguments.mib, "part_bytes": PART, "cores": cores, "rows": rows}))
    else:
        _print(rows, arguments.mib)


def measure(mib: int, repeats: int) -> list[dict[str, Any]]:
    """One row a way: GB/s, the share of the plain socket's, and microseconds of an empty call."""
    ways = ("socket", *WIRE, *(("zmq", "zmq-curve") if zmq is not None else ()))
    context, found = get_context("spawn"), {way: list[float]() for way in ways}
    empty: dict[str, float] = {}
    run = make_credentials(["client", "server"])
    near, far = context.Pipe()
    server = context.Process(target=serve, args=(far, run["server"].to_json()), daemon=True)
    server.start()
    addresses: dict[str, Any] = near.recv()
    try:
        for _ in range(repeats + 1):
            for way in ways:
                if way == "socket":
                    found[way].append(over_socket(addresses[way], mib))
                elif way.startswith("zmq"):
                    found[way].append(over_zmq(addresses[way], mib))
                else:
                    rate, empty[way] = over_wire(run["client"], way, addresses[way], mib)
                    found[way].append(rate)
    finally:
        near.send("end")
        server.join()
    # The first round warms up.
    rates = {way: statistics.median(values[1:]) for way, values in found.items()}
    return [
        {
            "way": way,
            "gb_per_s": round(rates[way], 3),
            "of_socket": round(rates[way] / rates["socket"], 3),
            "call_us": round(empty[way], 1) if way in empty else None,
        }
        for way in ways
    ]


def over_socket(address: tuple[str, int], mib: int) -> float:
    """GB/s of a bare socket."""
    buffer = memoryview(bytearray(PART))
    with socket.create_connection(address) as connection:
        began = time.perf_counter()
        connection.sendall(mib.to_bytes(8, "little"))
        for _ in range(mib):
            got = 0
            while got < PART:
                got += connection.recv_into(buffer[got:])
        return mib * PART / (time.perf_counter() - began) / 1e9


def over_zmq(address: tuple[str, bytes], mib: int) -> float:
    """GB/s of ZeroMQ's sockets; with CURVE if the address has a key."""
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
        began = time.perf_counter()
        asking.send(str(mib).encode())
        for _ in range(mib):
            asking.recv(copy=False)
        rate = mib * PART / (time.perf_counter() - began) / 1e9
    context.term()
    return rate


def over_wire(credentials: Credentials, way: str, address: str, mib: int) -> tuple[float, float]:
    """(GB/s, microseconds of an empty call)."""
    with Endpoint(credentials, options=WireOptions.model_validate({"security": way})) as post:
        post.meet("server", address)
        channel = post.channel("server")
        empty_call(channel)
        began = time.perf_counter()
        got = sum(part.arrays[0].nbytes for part in channel.start(Message("parts", {"mib": mib})).parts())
        seconds = time.perf_counter() - began
        if got != mib * PART:
            raise SystemExit(f"{got:,} bytes arrived where {mib * PART:,} were asked for.")
        return got / seconds / 1e9, 1e6 * statistics.median(empty_call(channel) for _ in range(CALLS))


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
    bare = {} if zmq is None else serve_zmq(buffers)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        pipe.send({"socket": listener.getsockname(), **bare, **{way: post.address for way, post in posts.items()}})
        while not pipe.poll(0):
            send_plainly(listener, buffers)
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


def send_plainly(listener: socket.socket, buffers: list[np.ndarray[Any, Any]]) -> None:
    """Serve one connection of the bare kind, if there is one."""
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        return
    with connection:
        connection.setblocking(True)
        mib = int.from_bytes(connection.recv(8), "little")
        for number in range(mib):
            connection.sendall(buffers[number % BUFFERS])


def _print(rows: list[dict[str, Any]], mib: int) -> None:
    title = f"{mib} MiB in parts of 1 MiB, loopback"
    table = Table("way", "GB/s", "of the socket", "empty call", title=title)
    for row in rows:
        call = "" if row["call_us"] is None else f"{row['call_us']:.0f} µs"
        table.add_row(row["way"], f"{row['gb_per_s']:.2f}", f"{row['of_socket']:.0%}", call)
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="how much travels at a time")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
