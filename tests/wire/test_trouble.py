"""Strangers, garbage, peers that vanish and come back: nobody else is disturbed and no call hangs."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from meetings import Cable, Meeting, echo, first_words, until
from raw_peer import RawPeer

from penstock.wire.channel import PeerLost
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import VERSION, Message, encode
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import Credentials, HandshakeError, make_credentials
from refusals import refused


def impatient(**options: object) -> WireOptions:
    return WireOptions.model_validate({"call_timeout": 0.6, **options})


def test_a_key_that_nobody_knows_is_refused(meeting: Meeting) -> None:
    _, b = meeting("a", "b")
    stranger = replace(make_credentials(["a"])["a"], peers=b._credentials.peers)
    with Endpoint(stranger, options=impatient()) as endpoint:
        endpoint.meet("b", b.address)
        with refused("peer-lost echo 0.6", PeerLost):
            endpoint.channel("b").call(Message("echo"))
    assert b.refused >= 1
    assert b.flows() == []


def test_a_server_with_another_key_is_not_believed(meeting: Meeting) -> None:
    _, b = meeting("a", "b")
    b.serve("echo", echo)
    with Endpoint(make_credentials(["a", "b"])["a"], options=impatient()) as endpoint:
        endpoint.meet("b", b.address)
        with refused("peer-lost", PeerLost):
            endpoint.channel("b").call(Message("echo"))
    assert b.flows() == []


@pytest.mark.parametrize(("security", "other"), [("tls", "token"), ("token", "tls")])
def test_another_security_is_refused(meeting: Meeting, security: str, other: str) -> None:
    a, b = meeting("a", "b", security=security)
    b.serve("echo", echo)
    with pytest.raises((HandshakeError, OSError)):
        RawPeer.call(a._credentials, "b", b.address, other)
    until(lambda: b.refused >= 1)
    assert b.flows() == []
    assert a.channel("b").call(Message("echo")).kind == "back"


GREETINGS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "noise": os.urandom(5000),
    "ones": b"\xff" * 64,
    "former": b"PENSTOCK/4" + b"aes\0\0\0" + b"a".ljust(64, b"\0") + os.urandom(64),
    # TLS's own words, cut off, and records with nothing in them.
    "half": first_words()[:40],
    "hello": first_words(),
    "twice": first_words() * 2,
    "empty": b"\x16\x03\x01\x00\x00" * 20,
    "data": b"\x17\x03\x03\x40\x00" + bytes(1 << 14),
}


@pytest.mark.parametrize("handshake", GREETINGS.values(), ids=GREETINGS)
def test_garbage_over_tcp_harms_nobody(meeting: Meeting, security: str, handshake: bytes) -> None:
    a, b = meeting("a", "b", security=security)
    b.serve("echo", echo)
    host, port = b.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as raw, suppress(OSError):
        raw.sendall(handshake)
        raw.shutdown(socket.SHUT_WR)
        raw.settimeout(20)
        while raw.recv(1 << 12):
            pass
    assert a.channel("b").call(Message("echo")).kind == "back"
    assert [count.name for count in b.flows()] == ["a>b"]
    assert sum(count.received_messages for count in b.flows()) == 1
    assert b.malformed == 0


NONSENSE: list[list[bytes]] = [
    [b""],
    [b"", b"", b""],
    [os.urandom(100)],
    [b"\x99" * 10, b"x" * 100_000],
    [msgpack.packb([VERSION, "answer", 1, 0, "", 0, ["", "", 0], "m", {}, []])],
    [msgpack.packb([VERSION, "ask", 1, 0, "", 0, ["", "", 0], "m", {}, [["f8", 1 << 40]]]), b"x"],
    [msgpack.packb([VERSION, "ask", 1, 0, "", 0, ["", "", -1], "m", {}, []])],
    [msgpack.packb([VERSION, "slice", 1, 0, "", 0, ["", "", 0], "m", {}, []])],
]


def test_nonsense_of_a_known_peer_harms_nobody(meeting: Meeting, security: str) -> None:
    a, b, c = meeting("a", "b", "c", security=security)
    b.serve("echo", echo)
    with RawPeer.call(c._credentials, "b", b.address, security) as raw:
        for number, frames in enumerate(NONSENSE):
            raw.send(frames)
            until(lambda number=number: b.malformed == number + 1)  # type: ignore[misc]
            assert a.channel("b").call(Message("echo")).kind == "back"
        frames = [bytes(frame) for frame in encode(Message("echo", {"sender": "a"}), 5, "ask")]
        raw.send(frames)
        assert b"\xa6sender\xa1c" in raw.receive()[0], "a name is proven, not told"
        for number in range(300):
            raw.send(encode(Message("echo"), 9 + number, "ask", 0, f"flow {number}"))
        until(lambda: b.malformed > len(NONSENSE) + 40)
    assert b.refused == 0
    assert len(b.flows()) <= 258
    assert a.channel("b").call(Message("echo")).kind == "back"


def test_nonsense_of_a_server_ends_in_its_time() -> None:
    run = make_credentials(["a", "b"])
    listener = socket.create_server(("127.0.0.1", 0))
    with Endpoint(run["a"], options=impatient(call_timeout=3.0)) as a, listener:
        a.meet("b", f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        pending = a.channel("b").start(Message("echo"))
        with RawPeer.accept(listener, run["b"]) as raw:
            assert raw.receive()
            for frames in NONSENSE[:4]:
                raw.send(frames)
            raw.send(encode(Message("m"), pending.call, "ask"))
            raw.send(encode(Message("m"), pending.call + 1000, "answer"))
            until(lambda: a.malformed == 5)
            raw.send(encode(Message("m", {"x": 1}), pending.call, "answer"))
            assert pending.result().body == {"x": 1}
            odd = a.channel("b").start(Message("odd"), timeout=0.5)
            assert raw.receive()
            raw.send(encode(Message("m"), odd.call, "part", 7))
            raw.send(encode(Message("m"), odd.call, "end", 1))
            with pytest.raises(PeerLost):
                list(odd.parts())


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("met", [False, True])
def test_a_peer_that_is_not_there_is_lost_in_time(met: bool) -> None:
    told = threading.Semaphore(0)
    with Endpoint(make_credentials(["a", "b"])["a"]) as a:
        if met:
            a.meet("b", free_address())
        began = time.monotonic()
        said = "connection tcp" if met else "known"
        with refused(f"peer-lost 'echo' 0.3 {said}", PeerLost):
            a.channel("b").call(Message("echo", arrays=(np.zeros(10_000),), done=told.release), timeout=0.3)
        assert time.monotonic() - began < 10
        assert told.acquire(timeout=20), "the request's memory is free"
        assert a._egress.waiting() == 0


def test_a_call_waits_for_a_peer_to_be_met() -> None:
    run = make_credentials(["a", "b"])
    with Endpoint(run["a"]) as a, Endpoint(run["b"]) as b:
        b.serve("echo", echo)
        pending = a.channel("b").start(Message("echo"), timeout=20)
        a.meet("b", b.address)
        assert pending.result().kind == "back"


def test_a_peer_restarted_elsewhere_answers_the_same_call(security: str) -> None:
    run = make_credentials(["a", "b"])
    options = WireOptions.model_validate({"security": security})
    asked, go = threading.Event(), threading.Event()

    def stuck(message: Message, sender: str) -> Message:
        asked.set()
        assert go.wait(20)
        return Message("too late")

    with Endpoint(run["a"], options=options) as a:
        with Endpoint(run["b"], options=options) as b:
            b.serve("rows", stuck)
            a.meet("b", b.address)
            pending = a.channel("b").start(Message("rows", arrays=(np.arange(50_000),)), timeout=20)
            assert asked.wait(20)
            with Endpoint(run["b"], options=options) as again:
                again.serve("rows", echo)
                a.meet("b", again.address)
                answer = pending.result()
                go.set()
        assert answer.body == {"sender": "a"}
        np.testing.assert_array_equal(answer.arrays[0], np.arange(50_000))


SERVER = """
import sys, time
import numpy as np
from penstock.wire.transport.tls import Credentials
from penstock.wire.message import Message
from penstock.wire.endpoint import Endpoint
with Endpoint(Credentials.from_json(sys.stdin.readline())) as post:
    def parts(message, sender):
        for number in range(40):
            if number == message.body["stops"] and sys.argv[1] == "stops":
                time.sleep(60)
            yield Message("part", {"number": number}, (np.full(20_000, number),))
    post.serve("parts", parts)
    print(post.address, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def server(credentials: Credentials, way: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that serves parts, and its address; killed at the end."""
    command = [sys.executable, "-c", SERVER, way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(credentials.to_json() + "\n")
            process.stdin.flush()
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_killed_process_is_replaced_in_the_middle_of_an_answer() -> None:
    run = make_credentials(["a", "b"])
    with (
        Endpoint(run["a"]) as a,
        server(run["b"], "stops") as (first, there),
        server(run["b"], "goes on") as (_, elsewhere),
    ):
        a.meet("b", there)
        parts = a.channel("b").start(Message("parts", {"stops": 10})).parts()
        got = [next(parts).body["number"] for _ in range(10)]
        first.send_signal(signal.SIGKILL)
        first.wait()
        a.meet("b", elsewhere)
        got += [part.body["number"] for part in parts]
        assert got == list(range(40))


def test_a_cut_link_is_made_anew_and_parts_arrive_once(meeting: Meeting, security: str) -> None:
    """The link is cut in the middle of an answer, three times: all parts come, each once and in order."""
    a, b = meeting("a", "b", security=security, window_bytes=1 << 16)

    def parts(message: Message, sender: str) -> Iterator[Message]:
        for number in range(40):
            yield Message("part", {"number": number}, (np.full(10_000, number),))

    b.serve("parts", parts)
    with Cable(b) as cable:
        a.meet("b", cable.address)
        pending, got = a.channel("b").start(Message("parts")), []
        for part in pending.parts():
            got.append(part.body["number"])
            if got[-1] in (5, 15, 25) and not pending.over:
                cable.cut()
        assert got == list(range(40))
        assert a.channel("b")._calls == {}


def test_a_silent_link_is_given_up_for_a_new_one(meeting: Meeting) -> None:
    """Nothing passes any more, though nobody hung up: the heartbeat notices, and the call is answered."""
    a, b = meeting("a", "b", heartbeat=0.4)
    b.serve("echo", echo)
    with Cable(b) as cable:
        a.meet("b", cable.address)
        assert a.channel("b").call(Message("echo")).kind == "back"
        cable.swallow()
        assert a.channel("b").call(Message("echo")).kind == "back"
        assert cable.connections >= 2


def test_a_caller_that_is_gone_stops_the_stream(meeting: Meeting) -> None:
    _, b = meeting("a", "b", window_bytes=1 << 16)
    ended, made = threading.Event(), []

    def endless(message: Message, sender: str) -> Iterator[Message]:
        try:
            while True:
                made.append(sender)
                yield Message("part", arrays=(np.zeros(10_000),))
        finally:
            ended.set()

    b.serve("endless", endless)
    with Endpoint(b._credentials) as caller:
        caller.meet("b", b.address)
        assert next(caller.channel("b").start(Message("endless")).parts()).kind == "part"
    assert ended.wait(20)
    until(lambda: b._serving._under_way == set())
    until(lambda: b._egress.waiting() == 0 and b._egress.in_flight() == 0)


def test_closing_ends_calls_at_once(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    go = threading.Event()

    def stuck(message: Message, sender: str) -> Message:
        assert go.wait(20)
        return Message("late")

    b.serve("stuck", stuck)
    channel = a.channel("b")
    pending = channel.start(Message("stuck"))
    a.close()
    with refused("closed"):
        pending.result()
    for late in (lambda: channel.call(Message("stuck")), lambda: a.channel("b"), lambda: a.meet("b", b.address)):
        with refused("closed"):
            late()
    go.set()


def test_answers_on_their_way_leave_before_the_end(meeting: Meeting, security: str) -> None:
    a, b = meeting("a", "b", security=security)
    b.serve("echo", echo)
    pending = [a.channel("b").start(Message("echo", {"n": n}, (np.zeros(20_000),))) for n in range(8)]
    pending[-1].result()
    b.close()
    assert [each.result().body["n"] for each in pending] == list(range(8))


def test_a_handler_that_never_ends_does_not_hold_up_closing(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.wire.request_server._PATIENCE", 0.05)
    a, b = meeting("a", "b", handler_threads=1)
    begun, go = threading.Event(), threading.Event()

    def stuck(message: Message, sender: str) -> Message:
        begun.set()
        assert go.wait(20)
        return Message("late")

    b.serve("stuck", stuck)
    a.channel("b").start(Message("stuck"))
    assert begun.wait(20)
    b.close()
    assert "does not end" in caplog.text
    go.set()


def test_links_that_break_while_answers_are_read_lose_and_repeat_nothing(meeting: Meeting, security: str) -> None:
    a, b = meeting("a", "b", security=security)
    b.serve("parts", lambda message, sender: (Message("p", {"n": n}, (np.full(500, n),) * 20) for n in range(300)))
    with Cable(b) as cable:
        a.meet("b", cable.address)
        call = a.channel("b").start(Message("parts"))
        link = a._links["b", ""]
        cut = []
        for number, part in enumerate(call.parts()):
            assert part.body["n"] == number and (part.arrays[7] == number).all()
            if number % 30 == 0:
                cut.append(link.group)
                cable.cut()
        assert len(cut) == 10
        until(lambda: link.group is not cut[0])
    assert b.malformed == a.malformed == 0


def test_a_port_that_cannot_be_leaves_nothing_behind(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    a.channel("b").call(Message("echo"))
    a.meet("b", "tcp://127.0.0.1:99999")
    with refused("peer-lost", PeerLost):
        a.channel("b").call(Message("echo"), 0.3)
    a.meet("b", b.address)
    assert a.channel("b").call(Message("echo")).kind == "back"
