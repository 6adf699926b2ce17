"""How fast are rows pulled from a store in another process, against a plain socket that copies as many bytes?

Rows of 256 and 400 bytes, drawn at random from a table, gathered there and put in their places here, over loopback: the
store with `token` (in the clear), `tls` (encrypted), and a bare TCP socket that sends as many
bytes of the table as they lie and reads them into the same buffer. The ways take turns, so that all of them meet the
same machine; medians are shown. `local` is the same pull from this process's memory, without any wire. `at_once` pulls
are under way at a time, as with as many `gather_threads`.
Run: python benchmarks/store.py [--rows 200000] [--pulls 8] [--at-once 1,2] [--repeats 5] [--json]
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from penstock import Graph, NodeSet
from penstock.graph.arrays import Array
from penstock.memory import keep_freed_memory
from penstock.partition import Book
from penstock.store.parts import PartedStore, StoreService
from penstock.store.source import LocalStore
from penstock.wire.channel import Channel
from penstock.wire.endpoint import Endpoint
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import Credentials, make_credentials
from products_graph import show

WIDTHS = (64, 100)
"""float32 a row: 256 and 400 bytes."""
WAYS = ("socket", "local", "token", "tls")
TABLE_ROWS = 500_000
PIECE = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a pull, all different")
    parser.add_argument("--pulls", type=int, default=8, help="pulls that are timed together")
    parser.add_argument("--at-once", default="1,2", help="pulls under way at a time: each of these is measured")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()
    rows = []
    for width in WIDTHS:
        for at_once in map(int, args.at_once.split(",")):
            rows += measure(width, args.rows, args.pulls, at_once, args.repeats)
    show("store", rows, args.json)


def measure(width: int, rows: int, pulls: int, at_once: int, repeats: int) -> list[dict[str, Any]]:
    """One row a way: GB/s, and the share of the plain socket's."""
    context, run = get_context("spawn"), make_credentials(["reader", "store"])
    near, far = context.Pipe()
    server = context.Process(target=serve, args=(far, run["store"].to_json(), width), daemon=True)
    server.start()
    found = {way: list[float]() for way in WAYS}
    with ExitStack() as stack:
        stack.callback(server.join)
        stack.callback(near.send, "end")
        ways = open_ways(stack, run["reader"], near.recv(), width, rows, pulls, at_once)
        for _ in range(repeats + 1):
            for way in WAYS:
                began = time.perf_counter()
                ways[way]()
                found[way].append(pulls * rows * width * 4 / (time.perf_counter() - began) / 1e9)
    # The first round warms up.
    rates = {way: statistics.median(values[1:]) for way, values in found.items()}
    return [
        {
            "row_bytes": 4 * width,
            "at_once": at_once,
            "way": way,
            "gb_per_s": rates[way],
            "of_socket": rates[way] / rates["socket"],
        }
        for way in WAYS
    ]


def open_ways(
    stack: ExitStack, me: Credentials, addresses: dict[str, Any], width: int, rows: int, pulls: int, at_once: int
) -> dict[str, Callable[[], None]]:
    """What does all pulls once, by way; connections stay open, as in a run."""
    table, outs = filled(width), [np.empty((rows, width), np.float32) for _ in range(at_once)]
    ids = [np.random.default_rng(number).permutation(TABLE_ROWS)[:rows] for number in range(pulls)]
    book = Book(1, 1, {"node": np.array([0, TABLE_ROWS])})
    pool = stack.enter_context(ThreadPoolExecutor(at_once))
    stores = {"local": PartedStore(book, {0: LocalStore({"node/x": table})}, no_channel)}
    for way in ("token", "tls"):
        post = stack.enter_context(Endpoint(me, options=WireOptions.model_validate({"security": way})))
        post.meet("store", addresses[way])
        stores[way] = PartedStore(book, {}, lambda part, post=post: post.channel("store"))  # type: ignore[misc]

    def pull(store: PartedStore) -> None:
        source = store.source("node/x")

        def share(first: int) -> None:
            for some in ids[first::at_once]:
                source.read(some, outs[first])

        list(pool.map(share, range(at_once)))
        if not np.array_equal(outs[0][-9:], table[ids[range(0, pulls, at_once)[-1]][-9:]]):
            raise SystemExit("Other rows came than were asked for.")

    connection = stack.enter_context(socket.create_connection(addresses["socket"]))
    plain = {"socket": lambda: over_socket(connection, pulls, outs)}
    return {**plain, **{way: lambda store=store: pull(store) for way, store in stores.items()}}  # type: ignore[misc]


def no_channel(part: int) -> Channel:
    raise SystemExit("What is here is not asked for elsewhere.")


def over_socket(connection: socket.socket, pulls: int, outs: list[Array]) -> None:
    """As many bytes over a bare socket."""
    connection.sendall((pulls * outs[0].nbytes).to_bytes(8, "little"))
    for pull in range(pulls):
        view, got = memoryview(outs[pull % len(outs)]).cast("B"), 0
        while got < len(view):
            got += connection.recv_into(view[got : got + PIECE])


def serve(pipe: Connection, credentials: str, width: int) -> None:
    """The other process: all ways at once, until told to end."""
    keep_freed_memory()
    own, posts, table = Credentials.from_json(credentials), {}, filled(width)
    for way in ("token", "tls"):
        posts[way] = Endpoint(own, options=WireOptions.model_validate({"security": way}))
        StoreService(posts[way], {0: Graph({"node": NodeSet(TABLE_ROWS, {"x": table})}, {})})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        pipe.send({"socket": listener.getsockname(), **{way: post.address for way, post in posts.items()}})
        while not pipe.poll(0):
            send_plainly(listener, memoryview(table).cast("B"))
    for post in posts.values():
        post.close()


def send_plainly(listener: socket.socket, table: memoryview) -> None:
    """Serve one connection of the bare kind, if there is one: so many bytes of the table, as they lie."""
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        return
    with connection:
        connection.setblocking(True)
        while asked := connection.recv(8):
            size = int.from_bytes(asked, "little")
            for start in range(0, size, PIECE):
                at = start % (len(table) - PIECE)
                connection.sendall(table[at : at + min(PIECE, size - start)])


def filled(width: int) -> Array:
    """The table: the same in both processes."""
    return np.arange(TABLE_ROWS * width, dtype=np.float32).reshape(TABLE_ROWS, width)


if __name__ == "__main__":
    main()
