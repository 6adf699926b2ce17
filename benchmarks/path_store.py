"""A key-value store whose GETs can take two paths and whose PUTs only one: an example of a service over paths.

The responder has two nodes. `cpu` handles GET and PUT, `acc` only GET. Each node is reached over a network of its own,
so the network counts as part of what differs. Requests are those of YCSB-B (5 % PUT) or YCSB-C (GET alone), with
addresses by Zipf's law.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.paths import build_routes
from penstock.paths.documents import ApplicationDocument, HardwareDocument
from penstock.paths.request_sequence import draw_sequence
from penstock.paths.route_table import RouteTable
from penstock.paths.service import Requester, Responder

_KEY_BYTES = 8


@dataclass(frozen=True)
class StoreShape:
    """Sizes and times of the store."""

    value_bytes: int = 4096
    keys: int = 10_000
    acc_ms: float = 4.0
    acc_places: int = 4
    cpu_ms: float = 12.0
    cpu_places: int = 8
    acc_mbit: float = 50.0
    cpu_mbit: float = 20.0
    jitter_ms: tuple[float, float] = (0.3, 0.9)
    """Delay of each message, made by the sender."""

    @property
    def hardware(self) -> HardwareDocument:
        """Two nodes, each behind a link of its own."""

        def link(mbit: float, jitter: tuple[float, float] = (0.0, 0.0)) -> dict[str, Any]:
            return {"gbps": mbit / 1e3, "latency_us": 100, "jitter_us": jitter, "network": True}

        jitter = (self.jitter_ms[0] * 1e3, self.jitter_ms[1] * 1e3)
        return HardwareDocument.model_validate(
            {
                "name": "two-networks",
                "nodes": {
                    "client": {},
                    "cpu": {"capacity": self.cpu_places},
                    "acc": {"capacity": self.acc_places},
                },
                "links": {
                    "to-cpu": link(self.cpu_mbit, jitter),
                    "from-cpu": link(self.cpu_mbit),
                    "to-acc": link(self.acc_mbit, jitter),
                    "from-acc": link(self.acc_mbit),
                },
                "routes": {
                    "client > cpu": ["to-cpu"],
                    "cpu > client": ["from-cpu"],
                    "client > acc": ["to-acc"],
                    "acc > client": ["from-acc"],
                },
            }
        )

    @property
    def application(self) -> ApplicationDocument:
        """GET over both nodes, PUT over `cpu` alone."""

        def steps(node: str, milliseconds: float, there: int, back: int) -> list[dict[str, Any]]:
            return [
                {"go": ["client", node], "bytes": there},
                {"compute": node, "us": milliseconds * 1e3},
                {"go": [node, "client"], "bytes": back},
            ]

        get, put = (_KEY_BYTES, self.value_bytes), (_KEY_BYTES + self.value_bytes, 0)
        return ApplicationDocument.model_validate(
            {
                "name": "store",
                "hardware": "two-networks",
                "addresses": self.keys,
                "skew": 0.99,
                "workloads": {"ycsb-c": {"get": 1}, "ycsb-b": {"get": 95, "put": 5}},
                "requests": {
                    "get": {
                        "depends": "address",
                        "paths": {"acc": steps("acc", self.acc_ms, *get), "cpu": steps("cpu", self.cpu_ms, *get)},
                    },
                    "put": {
                        "depends": "address",
                        "writes": True,
                        "paths": {"cpu": steps("cpu", self.cpu_ms, *put)},
                    },
                },
            }
        )

    @property
    def table(self) -> RouteTable:
        """The paths as selectors see them."""
        return build_routes(self.application, self.hardware)


class Store:
    """The values, and the functions that a responder runs; a node's work is a wait of its length."""

    def __init__(self, shape: StoreShape) -> None:
        self._shape, self._lock = shape, threading.Lock()
        self._values = {key: value_of(key, 0, shape.value_bytes) for key in range(shape.keys)}

    def responder(self) -> Responder:
        """A responder with all functions registered."""
        responder = Responder(self._shape.hardware)
        responder.register_application(lambda payload: self._get(payload, self._shape.acc_ms), "get", "acc")
        responder.register_application(lambda payload: self._get(payload, self._shape.cpu_ms), "get", "cpu")
        responder.register_application(self._put, "put", "cpu")
        return responder

    def _get(self, payload: bytes, milliseconds: float) -> bytes:
        time.sleep(milliseconds / 1e3)
        with self._lock:
            return self._values[int.from_bytes(payload[:_KEY_BYTES], "little")]

    def _put(self, payload: bytes) -> bytes:
        time.sleep(self._shape.cpu_ms / 1e3)
        with self._lock:
            self._values[int.from_bytes(payload[:_KEY_BYTES], "little")] = payload[_KEY_BYTES:]
        return b""


def value_of(key: int, version: int, size: int) -> bytes:
    """What a version of a key's value is: its number, repeated."""
    return (key * 1_000_003 + version).to_bytes(8, "little") * (size // 8)


@dataclass
class Measured:
    """What a run of requests took."""

    seconds: float
    latencies_ms: Array
    """From the moment at which a request should have been sent."""
    acc_share: float
    errors: int
    stale: int
    """GETs that returned something else than their key's last value that was written before they were sent."""
    decision_share: float
    """Of the time of all requests, what decisions took."""
    decision_us: float

    def fields(self) -> dict[str, float]:
        """The row of a table."""
        return {
            "requests_per_s": len(self.latencies_ms) / self.seconds,
            "median_ms": float(np.median(self.latencies_ms)),
            "p99_ms": float(np.quantile(self.latencies_ms, 0.99)),
            "acc_share": self.acc_share,
            "errors": self.errors,
            "stale": self.stale,
            "decision_us": self.decision_us,
        }


def drive(requester: Requester, shape: StoreShape, workload: str, rate: float, count: int, seed: int) -> Measured:
    """Send `count` requests at `rate` per second, at random moments, whatever has been answered; all are waited for."""
    sequence = draw_sequence(shape.application, workload, rate, count, seed)
    put = shape.table.types.index("put")
    versions: dict[int, int] = {}
    least: dict[int, tuple[int, int]] = {}
    """Of a GET: its key, and the version that was written before it was sent."""
    written: dict[int, tuple[int, int]] = {}
    done: dict[int, int] = {}
    latencies, taken, errors, stale = np.zeros(count), 0, 0, 0
    finished = threading.Event()
    due: dict[int, float] = {}
    lock = threading.Lock()

    def receive() -> None:
        nonlocal taken, errors, stale
        for place in range(count):
            answer = requester.recv()
            with lock:
                latencies[place] = (time.perf_counter() - due[answer.number]) * 1e3
                taken += answer.path == "acc"
                errors += answer.error is not None
                if answer.number in written:
                    key, version = written[answer.number]
                    done[key] = max(done.get(key, 0), version)
                elif answer.error is None:
                    key, version = least[answer.number]
                    found = int.from_bytes(answer.payload[:8], "little") - key * 1_000_003
                    stale += found < version
        finished.set()

    thread = threading.Thread(target=receive)
    thread.start()
    begin = time.perf_counter()
    for place in range(count):
        at = begin + sequence.arrivals[place] / 1e6
        if (wait := at - time.perf_counter()) > 0:
            time.sleep(wait)
        key = int(sequence.groups[place])
        name = key.to_bytes(_KEY_BYTES, "little")
        with lock:
            if sequence.types[place] == put:
                versions[key] = versions.get(key, 0) + 1
                number = requester.send("put", name + value_of(key, versions[key], shape.value_bytes), key)
                written[number] = key, versions[key]
            else:
                number = requester.send("get", name, key)
                least[number] = key, done.get(key, 0)
            due[number] = at
    finished.wait()
    thread.join()
    seconds = time.perf_counter() - begin
    decided = requester.decision_seconds
    return Measured(
        seconds, latencies, taken / count, errors, stale, decided / seconds, decided / requester.decisions * 1e6
    )
