"""A real service over two unequal paths between two hosts in a box, one of them disturbed: which selector serves best.

The key-value store of path_store.py. Both networks are links of their own; every request is delayed by 0.3 to 0.9 ms by
its sender, a hundred times the source's jitter. While requests come, the link to `acc` drops to a tenth of its rate for
a while, comes back, and drops again. Needs root (network namespaces, tc).

    python benchmarks/path_service.py --rate 800 --requests 8000
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import Host, change_rate, hosts, join_directly, shown_on_hosts
from path_store import Store, StoreShape, drive
from penstock.graph.hashing import key_of, unit_draws
from penstock.paths.service import WirePath, init, serve_wire
from penstock.wire.endpoint import Endpoint
from penstock.wire.transport.tls import Credentials, make_credentials

SELECTORS = ("leo-smooth", "leo", "greedy-end-to-end", "greedy-intra", "ipipe", "node:acc", "node:cpu")
_ROLES = ("acc", "cpu")
_HANDLERS = 160
"""Threads of the responder: as many requests as can be at a node or waiting for it, so that t3 is their arrival."""
_CARRIERS = 64


class DelayedPath:
    """A path whose sender delays each message at random."""

    def __init__(self, path: Callable[[bytes], bytes], least_ms: float, most_ms: float, seed: int) -> None:
        self._path, self._count, self._lock = path, 0, threading.Lock()
        self._delays = (least_ms + (most_ms - least_ms) * unit_draws(key_of(seed, "delays"), 1 << 16)) / 1e3

    def __call__(self, message: bytes) -> bytes:
        """The answer, asked for a random delay later."""
        with self._lock:
            delay = self._delays[self._count % len(self._delays)]
            self._count += 1
        time.sleep(delay)
        return self._path(message)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every selector, each with a responder of its own."""
    shape = StoreShape()
    rows = []
    with hosts([1000.0, 1000.0]) as (client, server):
        rates = {"acc": shape.acc_mbit, "cpu": shape.cpu_mbit}
        ends = {role: join_directly(client, server, place, rates[role]) for place, role in enumerate(_ROLES)}
        for disturbed in (False, True):
            for selector in options.selectors or SELECTORS:
                row = _measured(options, shape, client, server, ends, selector, disturbed)
                rows.append({"disturbed": disturbed, "selector": selector, **row})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _measured(
    options: argparse.Namespace,
    shape: StoreShape,
    client: Host,
    server: Host,
    ends: dict[str, tuple[str, str]],
    selector: str,
    disturbed: bool,
) -> dict[str, float]:
    names = [f"{side}-{role}" for side in ("client", "server") for role in _ROLES]
    credentials = make_credentials(names)
    with _responder(server, credentials, {role: ends[role][1] for role in _ROLES}) as addresses, client.entered():
        requester = init(shape.table, selector, options.seed, most_in_progress=4096, threads=_CARRIERS)
        endpoints = []
        for place, role in enumerate(_ROLES):
            endpoint = Endpoint(credentials[f"client-{role}"], ends[role][0])
            endpoints.append(endpoint)
            endpoint.meet(f"server-{role}", addresses[role])
            path = WirePath(endpoint, f"server-{role}", role)
            requester.register_communication(DelayedPath(path, *shape.jitter_ms, options.seed + place), role)
        stop = threading.Event()
        disturber = threading.Thread(target=_disturb, args=(shape, (client, server), stop, options.seconds_each))
        with requester:
            drive(requester, shape, "ycsb-c", options.rate / 4, 50, options.seed + 1)
            if disturbed:
                disturber.start()
            try:
                found = drive(requester, shape, options.workload, options.rate, options.requests, options.seed)
            finally:
                stop.set()
                if disturbed:
                    disturber.join()
        for endpoint in endpoints:
            endpoint.close()
    return found.fields() | {"decision_cpu_share": found.decision_share}


def _disturb(shape: StoreShape, both: tuple[Host, Host], stop: threading.Event, seconds: float) -> None:
    """The link to `acc` is slow every other time."""
    slow = False
    while not stop.wait(seconds):
        slow = not slow
        change_rate(both, 0, shape.acc_mbit / 10 if slow else shape.acc_mbit)
    change_rate(both, 0, shape.acc_mbit)


@contextmanager
def _responder(
    server: Host, credentials: dict[str, Credentials], interfaces: dict[str, str]
) -> Iterator[dict[str, str]]:
    """A process of its own on the other host; its addresses by role."""
    given = {role: [credentials[f"server-{role}"].to_json(), interfaces[role]] for role in _ROLES}
    with server.entered():
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(given) + "\n")
        process.stdin.flush()
        yield json.loads(process.stdout.readline())
    finally:
        # It ends when its input does.
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def serve() -> None:
    """The responder's process: reads its credentials, says where it listens, and ends with its input."""
    given = json.loads(sys.stdin.readline())
    responder = Store(StoreShape()).responder()
    endpoints = {}
    for role, (credentials, interface) in given.items():
        endpoint = Endpoint(Credentials.from_json(credentials), interface, handler_threads=_HANDLERS)
        # Where the client listens is not needed: it connects, and answers go back over its connections.
        serve_wire(endpoint, responder, role)
        endpoints[role] = endpoint
    print(json.dumps({role: endpoint.address for role, endpoint in endpoints.items()}), flush=True)
    sys.stdin.read()
    for endpoint in endpoints.values():
        endpoint.close()


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=700.0, help="requests per second")
    parser.add_argument("--requests", type=int, default=7000)
    parser.add_argument("--seconds-each", type=float, default=1.5, help="how long the link is slow, and is not")
    parser.add_argument("--workload", default="ycsb-b")
    parser.add_argument("--selectors", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help="what the benchmark starts on the other host")
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    return shown_on_hosts("path_service", options, measure)


if __name__ == "__main__":
    sys.exit(main())
