"""Connections that prove nothing: they cost little memory, there are few of them, and peers are served as before."""

import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from meetings import Meeting, echo, first_words, until
from raw_peer import RawPeer

from penstock.wire.message import Message
from penstock.wire.sockets import split_address
from penstock.wire.transport.frames import LENGTH
from penstock.wire.transport.tls import make_credentials

SERVER = """
import sys
from penstock.wire.transport.tls import Credentials
from penstock.wire.message import Message
from penstock.wire.endpoint import Endpoint
from penstock.wire.options import WireOptions
options = WireOptions(security=sys.argv[1])
with Endpoint(Credentials.from_json(sys.stdin.readline()), options=options) as post:
    post.serve("echo", lambda message, sender: message)
    print(post.address, flush=True)
    sys.stdin.readline()
"""
STATUS = Path("/proc/self/status")
GIB = 1 << 30


def peak_mb(process: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) / 1024


def announcements() -> list[bytes]:
    """What announces much: messages of the wire, and messages of TLS's handshake as long as their lengths allow."""
    longest = b"\x01\xff\xff\xff"
    return [
        LENGTH.pack(GIB),
        first_words() + LENGTH.pack(GIB - 1),
        b"\x16\x03\x01\x40\x00" + longest + b"\x03\x03",
        first_words() + b"\x16\x03\x01\x40\x00" + longest,
    ]


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_unauthenticated_connections_that_announce_gibibytes_cost_no_memory(security: str) -> None:
    """Each of 24 connections announces 1 GiB and sends as much of it as anybody takes, up to 64 MiB."""
    run = make_credentials(["a", "b"])
    command = [sys.executable, "-c", SERVER, security]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(run["b"].to_json() + "\n")
        process.stdin.flush()
        address = process.stdout.readline().strip()
        before = peak_mb(process.pid)
        for number in range(24):
            _flood(address, announcements()[number % 4], 64 << 20)
        after = peak_mb(process.pid)
        with RawPeer.call(run["a"], "b", address, security):
            pass
        process.stdin.close()
        assert process.wait(20) == 0
    assert after - before < 16


def _flood(address: str, announced: bytes, size: int) -> None:
    """Send until all is sent, the other side hangs up or takes nothing for a while."""
    block = bytes(1 << 20)
    with socket.create_connection(split_address(address)) as stranger, suppress(OSError):
        stranger.settimeout(0.3)
        stranger.sendall(announced)
        for _ in range(size // len(block)):
            stranger.sendall(block)


def test_unauthenticated_connections_are_few_and_peers_are_served(
    meeting: Meeting, security: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 connections that say nothing, 8 are kept: the oldest are ended, and a peer that comes then is let in."""
    monkeypatch.setattr("penstock.wire.transport.connection.MAX_UNAUTHENTICATED", 8)
    a, b = meeting("a", "b", security=security)
    b.serve("echo", echo)
    listener = b._exchange.listeners[0]
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(split_address(b.address), timeout=20)) for _ in range(40)
        ]
        until(lambda: b.refused == 32)
        for stranger in strangers[:32]:
            assert stranger.recv(1) == b""
        assert len(listener._unauthenticated) == 8
        assert a.channel("b").call(Message("echo", arrays=(np.zeros(50_000),))).kind == "back"
        assert a.channel("b", "another").call(Message("echo")).kind == "back"
    until(lambda: len(listener._unauthenticated) == 0)
    assert len(listener.groups) == 2


def test_connections_of_a_peer_are_bounded(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.wire.transport.connection.MAX_PER_PEER", 4)
    a, b, c = meeting("a", "b", "c")
    b.serve("echo", echo)
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(RawPeer.call(c._credentials, "b", b.address))
        until(lambda: len(b._exchange.listeners[0]._of_peer["c"]) == 4)
        assert a.channel("b").call(Message("echo")).kind == "back"


def test_strangers_that_never_end_their_handshake_are_ended(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.wire.transport.connection.HANDSHAKE_SECONDS", 0.05)
    _, b = meeting("a", "b")
    with socket.create_connection(split_address(b.address), timeout=20) as stranger:
        stranger.send(first_words()[:20])
        assert stranger.recv(1) == b""
    until(lambda: b.refused == 1)


def test_a_process_without_descriptors_goes_on(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepting fails for a while: a stranger's connection is given up for it, and peers are let in afterwards."""
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    listener = b._exchange.listeners[0]
    with socket.create_connection(split_address(b.address), timeout=20) as stranger:
        until(lambda: len(listener._unauthenticated) == 1)
        failing = _Failing(listener.socket)
        listener.socket = failing  # type: ignore[assignment]
        assert a.channel("b").call(Message("echo")).kind == "back"
        assert stranger.recv(1) == b""
    assert failing.failures == 0


def test_who_goes_on_sending_does_not_hold_up_the_end_of_its_connection(meeting: Meeting) -> None:
    """Reading what came before a connection is closed ends, also where more comes than is read."""
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    a.channel("b").call(Message("echo"))
    (group,) = b._exchange.listeners[0].groups.values()
    connection, stream = group.first, group.first._stream
    assert stream is not None
    own, stream.socket = stream.socket, _Endless(stream.socket)  # type: ignore[assignment]
    b.close()
    own.close()
    assert connection.closed


class _Endless:
    """A socket on which there is always something to read."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own

    def recv(self, size: int) -> bytes:
        return bytes(size)

    def shutdown(self, how: int) -> None:
        self._own.shutdown(how)

    def fileno(self) -> int:
        return self._own.fileno()

    def close(self) -> None:
        self._own.close()


class _Failing:
    """A listening socket that cannot accept three times."""

    def __init__(self, own: socket.socket) -> None:
        self._own, self.failures = own, 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            time.sleep(0)
            raise OSError(24, "Too many open files")
        return self._own.accept()

    def fileno(self) -> int:
        return self._own.fileno()

    def close(self) -> None:
        self._own.close()
