"""The programming interface: a key-value store over paths in this process and over the wire."""

import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.paths import SELECTORS
from penstock.paths.service import (
    DeviceRegion,
    InProcessPath,
    Responder,
    SharedRegion,
    SocketPath,
    SocketServer,
    WirePath,
    init,
    serve_wire,
    transports,
)
from penstock.paths.service.requester import AddressOrder
from penstock.paths.service.responder import (
    HEADER_BYTES,
    Request,
    pack_answer,
    pack_request,
    unpack_answer,
    unpack_request,
)
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Malformed
from penstock.wire.transport.tls import make_credentials
from refusals import refused

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from path_store import Store, StoreShape, drive, value_of

SHAPE = StoreShape(value_bytes=64, keys=50, acc_ms=0.2, cpu_ms=0.4, acc_places=2, cpu_places=2)


def connected(selector="leo-smooth", shape=SHAPE, **options):
    responder = Store(shape).responder()
    requester = init(shape.table, selector, **options)
    for role in ("acc", "cpu"):
        requester.register_communication(InProcessPath(responder, role), role)
    return requester


@pytest.mark.parametrize(
    "selector", [*(name for name, each in SELECTORS.items() if each.online and not each.argument), "node:cpu"]
)
def test_the_store_answers_under_every_selector(selector):
    with connected(selector) as requester:
        found = drive(requester, SHAPE, "ycsb-b", 4000.0, 300, seed=1)
    assert found.errors == 0 and found.stale == 0 and len(found.latencies_ms) == 300
    if selector == "node:cpu":
        assert found.acc_share == 0.0


def test_put_is_handled_by_one_node_and_get_sees_it():
    with connected() as requester:
        name = (7).to_bytes(8, "little")
        requester.send("put", name + value_of(7, 5, 64), address=7)
        put = requester.recv(10)
        assert put.path == "cpu" and put.error is None and put.end_to_end_us >= 400
        number = requester.send("get", name, address=7)
        got = requester.recv(10)
        assert got.number == number and got.payload == value_of(7, 5, 64)
        assert 0 < got.at_hosts_us <= got.end_to_end_us + 1


def test_a_request_that_depends_on_one_in_progress_waits_for_it_and_takes_its_path():
    release, started = threading.Event(), threading.Event()
    responder = Responder(SHAPE.hardware)

    def slow_put(payload: bytes) -> bytes:
        started.set()
        release.wait(20)
        return b""

    responder.register_application(slow_put, "put", "cpu")
    for role in ("acc", "cpu"):
        responder.register_application(lambda payload, role=role: role.encode(), "get", role)
    requester = init(SHAPE.table, "node:acc")
    for role in ("acc", "cpu"):
        requester.register_communication(InProcessPath(responder, role), role)
    with requester:
        requester.send("put", b"x", address=b"key")
        assert started.wait(20)
        requester.send("get", b"x", address=b"key")
        requester.send("get", b"x", address=b"other")
        assert requester.recv(20).payload == b"acc"
        release.set()
        assert {requester.recv(20).payload for _ in range(2)} == {b"", b"cpu"}
        requester.send("get", b"x", address=b"key")
        assert requester.recv(20).payload == b"acc"


def test_requests_of_one_address_are_carried_in_order_reads_beside_each_other():
    carried: list[str] = []
    order = AddressOrder[str](carried.append)
    for name, group, writes in (
        ("read 1", 0, False), ("read 2", 0, False), ("write 1", 0, True), ("read 3", 0, False),
        ("write 2", 0, True), ("elsewhere", 1, True), ("read 4", 0, False), ("read 5", 0, False),
    ):  # fmt: skip
        order.send(name, group, writes)
    assert carried == ["read 1", "read 2", "elsewhere"]
    seen = []
    while len(carried) < 8:
        order.answered(0)
        seen.append(carried[3:])
    assert seen == [
        [],
        ["write 1"],
        ["write 1", "read 3"],
        ["write 1", "read 3", "write 2"],
        ["write 1", "read 3", "write 2", "read 4", "read 5"],
    ]


def test_queueing_at_a_node_is_in_the_header_and_not_in_the_network():
    clock = [0]
    responder = Responder(SHAPE.hardware)
    responder.register_timestamp(lambda: clock[0], "hardware")

    def work(payload: bytes) -> bytes:
        clock[0] += 3_000_000
        return payload

    responder.register_application(work, "get", "acc")
    took, payload = unpack_answer(responder.handle(pack_request(Request(0, "get", b"abc")), "acc"))
    assert took == 3000.0 and payload == b"abc"


def test_the_store_over_the_wire():
    credentials = make_credentials(["client", "server"])
    shape = SHAPE
    with (
        Endpoint(credentials["server"], handler_threads=8) as server,
        Endpoint(credentials["client"]) as client,
    ):
        serve_wire(server, Store(shape).responder())
        client.meet("server", server.address)
        requester = init(shape.table, threads=4)
        for role in ("acc", "cpu"):
            requester.register_communication(WirePath(client, "server", role, timeout=20), role)
        with requester:
            found = drive(requester, shape, "ycsb-b", 500.0, 60, seed=2)
            requester.send("put", b"no key")
            lost = requester.recv(20)
    assert found.errors == 0 and found.stale == 0
    assert lost.error is None or "KeyError" not in str(lost.error)


def test_an_error_of_an_application_function_is_in_its_answer():
    credentials = make_credentials(["client", "server"])
    with Endpoint(credentials["server"]) as server, Endpoint(credentials["client"]) as client:
        responder = Responder(SHAPE.hardware)
        serve_wire(server, responder, "cpu")
        client.meet("server", server.address)
        requester = init(SHAPE.table, "node:acc", threads=1)
        for role in ("acc", "cpu"):
            requester.register_communication(WirePath(client, "server", role, timeout=20), role)
        with requester:
            requester.send("get", b"")
            refused_role = requester.recv(20)
            requester.send("put", b"")
            unknown = requester.recv(20)
    assert "acc" in str(refused_role.error) and "put" in str(unknown.error)


def test_memory_is_read_and_written_past_the_application():
    responder = Responder(SHAPE.hardware)
    with SharedRegion(64) as region:
        responder.register_memory(region.read, "read", "table")
        responder.register_memory(region.write, "write", "table")
        far = init(SHAPE.table)
        far.register_communication(InProcessPath(responder, "acc"), "acc")
        far.write("table", 8, b"abcd")
        assert far.read("table", 8, 4) == b"abcd" and region.read(8, 4) == b"abcd"
        # On the same host the region is mapped, and nobody is asked.
        near, mapped = init(SHAPE.table), SharedRegion(64, region.path)
        near.register_memory(mapped.read, "read", "table")
        near.register_memory(mapped.write, "write", "table")
        near.write("table", 0, b"xy")
        assert near.read("table", 0, 12) == b"xy" + bytes(6) + b"abcd"
        mapped.close()
        with refused("value-out-of-range 60"):
            region.read(60, 5)
        with refused("not-permitted"):
            SharedRegion(32, region.path)
        path = region.path
    assert not path.exists()
    with refused("file-not-found"):
        SharedRegion(64, path)


def test_a_store_over_sockets_of_this_host(tmp_path):
    responder = Store(SHAPE).responder()
    requester, paths = init(SHAPE.table, threads=3), []
    with SocketServer(tmp_path / "acc", responder, "acc"), SocketServer(tmp_path / "cpu", responder, "cpu"):
        assert (tmp_path / "acc").stat().st_mode & 0o777 == 0o600
        for role in ("acc", "cpu"):
            paths.append(SocketPath(tmp_path / role, timeout=20))
            requester.register_communication(paths[-1], role)
        with requester:
            for key in range(12):
                requester.send("put", key.to_bytes(8, "little") + value_of(key, 1, SHAPE.value_bytes), key)
            answers = [requester.recv(20) for _ in range(12)]
        assert all(answer.error is None and answer.path == "cpu" for answer in answers)
        with refused("not-permitted free"):
            SocketServer(tmp_path / "acc", responder, "acc")
    assert not (tmp_path / "acc").exists()
    with pytest.raises(OSError):
        paths[0](b"anybody?")
    for path in paths:
        path.close()


def test_what_a_socket_announces_is_bounded(tmp_path):
    server = SocketServer(tmp_path / "acc", Responder(SHAPE.hardware), "acc")
    with server, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(20)
        raw.connect(str(tmp_path / "acc"))
        raw.sendall(b"\xff\xff\xff\xff")
        assert raw.recv(1) == b"", "the connection is ended"


def test_another_users_process_is_refused(tmp_path, monkeypatch):
    with SocketServer(tmp_path / "acc", Responder(SHAPE.hardware), "acc"):
        monkeypatch.setattr(transports.os, "geteuid", lambda: os.getuid() + 1)
        with refused("not-permitted user"):
            SocketPath(tmp_path / "acc")(b"hello")


def test_memory_of_a_device_is_read_and_written_by_copies():
    tensor = torch.zeros(64, dtype=torch.uint8)
    responder, region = Responder(SHAPE.hardware), DeviceRegion(tensor)
    responder.register_memory(region.read, "read", "table")
    responder.register_memory(region.write, "write", "table")
    far = init(SHAPE.table)
    far.register_communication(InProcessPath(responder, "acc"), "acc")
    far.write("table", 8, b"abcd")
    far.write("table", 0, b"")
    assert far.read("table", 7, 6) == b"\0abcd\0" and bytes(tensor[8:12].tolist()) == b"abcd"
    with refused("value-out-of-range 60"):
        region.read(60, 5)
    with refused("shape-mismatch uint8"):
        DeviceRegion(torch.zeros(4))


def test_sending_waits_while_too_much_is_in_progress():
    gate = threading.Semaphore(0)
    responder = Responder(SHAPE.hardware)

    def held(payload: bytes) -> bytes:
        gate.acquire(timeout=20)
        return payload

    for role in ("acc", "cpu"):
        responder.register_application(held, "get", role)
    requester = init(SHAPE.table, "node:acc", most_in_progress=2)
    for role in ("acc", "cpu"):
        requester.register_communication(InProcessPath(responder, role), role)
    with requester:
        sent = []
        sending = threading.Thread(target=lambda: sent.extend(requester.send("get", b"", each) for each in range(3)))
        sending.start()
        gate.release()
        first = requester.recv(20)
        sending.join(20)
        assert len(sent) == 3 and first.number in (0, 1)
        gate.release(2)
        assert {requester.recv(20).number, requester.recv(20).number, first.number} == {0, 1, 2}


def test_misuse_is_a_sentence():
    requester = init(SHAPE.table)
    with refused("unknown-name communication acc"):
        requester.start()
    with refused("closed"):
        requester.send("get", b"")
    with refused("unknown-name delete"):
        requester.send("delete", b"")
    with refused("unsupported-combination rolling-horizon"):
        init(SHAPE.table, "rolling-horizon")
    requester.register_communication(lambda message: message, "acc")
    with refused("duplicate acc"):
        requester.register_communication(lambda message: message, "acc")
    with refused("invalid-value peek"):
        requester.register_memory(bytes, "peek", "table")
    with connected() as started, refused("peer-lost 0.01"):
        started.recv(0.01)
    with refused("unknown-name gpu"):
        Responder(SHAPE.hardware).handle(pack_request(Request(0, "get")), "gpu")


def test_messages_are_checked():
    request = Request(1, "table", b"abc", 3, 0)
    assert unpack_request(pack_request(request)) == request
    assert HEADER_BYTES == 4 and unpack_answer(pack_answer(1e15, b"z")) == (2**32 - 1, b"z")
    rng = np.random.default_rng(0)
    for size in range(40):
        noise = rng.integers(0, 256, size, np.uint8).tobytes()
        # Random bytes are a request now and then, and never anything but that or Malformed.
        with suppress(Malformed):
            unpack_request(noise)
    with pytest.raises(Malformed):
        unpack_request(pack_request(request)[:20])
    with pytest.raises(Malformed):
        unpack_answer(b"abc")
