"""What do strangers and hostile peers cost an endpoint that speaks TLS, and is anybody disturbed?

A server in a process of its own gets hostile connections and messages of many kinds, several at a time: noise, HTTP,
words of TLS that are cut off, altered or repeated, clients of TLS 1.2, clients without a certificate, with one of
another run, tasks of the run that say they are others or that join others' groups, half-open handshakes that are left
open, records that are cut off or altered, and, from a peer that has proven who it is, messages that are none. Meanwhile
an honest peer calls again and again, and must be answered every time. What is shown: connections and messages of each
kind, how many were refused, the honest peer's calls with their median and worst time, and the server's memory, open
files and threads before and after.
Run: python benchmarks/hostile.py [--count 20000] [--seed 0] [--json]
"""

import argparse
import json
import random
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
from rich.console import Console
from rich.table import Table

from penstock.wire.endpoint import Endpoint
from penstock.wire.message import VERSION, Message, encode
from penstock.wire.options import WireOptions
from penstock.wire.sockets import split_address
from penstock.wire.transport.connection import GREETING, new_group
from penstock.wire.transport.frames import LENGTH, pack_head
from penstock.wire.transport.tls import Credentials, Tls, make_credentials

SERVER = """
import sys
from penstock.wire.transport.tls import Credentials
from penstock.wire.endpoint import Endpoint
with Endpoint(Credentials.from_json(sys.stdin.readline())) as post:
    post.serve("echo", lambda message, sender: message)
    print(post.address, flush=True)
    for line in sys.stdin:
        print(post.refused, post.malformed, flush=True)
"""
THREADS = 4
HALF_OPEN = 300
"""Connections that are left in the middle of their handshake; a server keeps fewer."""
MESSAGES = 25
"""That one hostile peer sends before it hangs up."""


class Attacker:
    """Everything hostile, by name. One for each thread."""

    def __init__(self, run: dict[str, Credentials], address: str, seed: int) -> None:
        self._address, self._draws = split_address(address), random.Random(seed)
        self._peer = Tls(run["peer"], WireOptions())
        other = make_credentials(["peer", "server"])["peer"]
        believing = replace(other, peers=run["peer"].peers, authority=run["peer"].authority)
        self._stranger = Tls(believing, WireOptions())
        self._run, self._half_open = run, list[socket.socket]()
        self._words = self._first_words()
        self.done: Counter[str] = Counter()
        self.kinds: list[Callable[[], None]] = [
            self.noise, self.http, self.cut_words, self.altered_words, self.repeated_words, self.half_open,
            self.tls_1_2, self.no_certificate, self.another_run, self.another_task, self.another_group, self.cut_record,
            self.altered_record, self.nonsense,
        ]  # fmt: skip

    def go(self, count: int) -> None:
        """So many hostile connections and messages."""
        while self.done.total() < count:
            kind = self._draws.choice(self.kinds)
            self.done[kind.__name__] += 1
            with suppress(OSError):
                kind()
        for each in self._half_open:
            each.close()

    def noise(self) -> None:
        self._say(self._draws.randbytes(self._draws.randrange(1, 4096)))

    def http(self) -> None:
        self._say(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")

    def cut_words(self) -> None:
        self._say(self._words[: self._draws.randrange(1, len(self._words))])

    def altered_words(self) -> None:
        words = bytearray(self._words)
        words[self._draws.randrange(len(words))] ^= 1 << self._draws.randrange(8)
        self._say(bytes(words))

    def repeated_words(self) -> None:
        self._say(self._words * 3)

    def half_open(self) -> None:
        own = socket.create_connection(self._address, 5)
        own.sendall(self._words if self._draws.random() < 0.5 else self._words[:50])
        self._half_open.append(own)
        if len(self._half_open) > HALF_OPEN // THREADS:
            self._half_open.pop(0).close()

    def tls_1_2(self) -> None:
        context = _client()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._shake(context.wrap_socket, b"")

    def no_certificate(self) -> None:
        self._shake(_client().wrap_socket, bytes(200))

    def another_run(self) -> None:
        self._shake(self._wrapped(self._stranger), self._greeting("peer"))

    def another_task(self) -> None:
        self._shake(self._wrapped(self._peer), self._greeting("honest"))

    def another_group(self) -> None:
        self._shake(self._wrapped(self._peer), self._greeting("peer", stripe=self._draws.randrange(1, 256)))

    def cut_record(self) -> None:
        with self._shaken(self._wrapped(self._peer)) as own:
            own.sendall(self._greeting("peer"))
            socket.socket.send(own, b"\x17\x03\x03\x40\x00" + self._draws.randbytes(self._draws.randrange(1 << 14)))

    def altered_record(self) -> None:
        with self._shaken(self._wrapped(self._peer)) as own:
            own.sendall(self._greeting("peer"))
            own.recv(64)
            socket.socket.send(own, b"\x17\x03\x03\x00\x40" + self._draws.randbytes(64))
            own.recv(1)

    def nonsense(self) -> None:
        """Messages that are none, of a peer that has proven who it is."""
        with self._shaken(self._wrapped(self._peer)) as own:
            own.sendall(self._greeting("peer"))
            own.recv(64)
            for _ in range(MESSAGES):
                own.sendall(self._message())
                self.done["messages"] += 1
            if self._draws.random() < 0.5:
                # A head of a length that is none ends the connection; what came before it is answered or refused.
                own.sendall(LENGTH.pack(self._draws.randrange(1 << 24, 1 << 32)))
                while own.recv(1 << 12):
                    pass

    def _message(self) -> bytes:
        draws = self._draws
        fields: list[Any] = [VERSION, "ask", 1, 0, "", 0, ["", "", 0], "echo", {}, []]
        fields[draws.randrange(len(fields))] = draws.choice(
            [None, -1, 1 << 63, "x" * 200, [], {"a": [1] * 9}, b"", 0.5]
        )
        frames: list[bytes] = draws.choice(
            [
                [msgpack.packb(fields)],
                [draws.randbytes(draws.randrange(200))],
                [msgpack.packb([*fields[:-1], [["f8", 1 << 40]]]), bytes(64)],
                [bytes(encode(Message("no such kind"), draws.randrange(1 << 40), "ask")[0])],
                [b"\x91" * 2000],
            ]
        )
        head, _ = pack_head(frames)
        return LENGTH.pack(len(head)) + head

    def _greeting(self, name: str, stripe: int = 0) -> bytes:
        return GREETING.pack(b"tls", new_group(), stripe, name.encode(), bytes(64))

    def _wrapped(self, tls: Tls) -> Callable[[socket.socket], ssl.SSLSocket]:
        return lambda own: tls.wrap(own, server_side=False)

    def _shaken(self, wrap: Callable[[socket.socket], ssl.SSLSocket]) -> ssl.SSLSocket:
        plain = socket.create_connection(self._address, 5)
        try:
            own = wrap(plain)
        except BaseException:
            plain.close()
            raise
        try:
            own.do_handshake()
        except BaseException:
            own.close()
            raise
        return own

    def _shake(self, wrap: Callable[[socket.socket], ssl.SSLSocket], said: bytes) -> None:
        with self._shaken(wrap) as own:
            own.sendall(said)
            if own.recv(1):
                own.recv(1 << 12)

    def _say(self, said: bytes) -> None:
        with socket.create_connection(self._address, 5) as own:
            own.sendall(said)
            own.shutdown(socket.SHUT_WR)
            while own.recv(1 << 12):
                pass

    @staticmethod
    def _first_words() -> bytes:
        sent = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            _client().wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
        return sent.read()


def _client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="hostile connections and messages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.count, arguments.seed)
    if arguments.json:
        print(json.dumps(figures))
        return
    table = Table("figure", "", title=f"{arguments.count:,} hostile connections and messages over TLS")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console().print(table)


def measure(count: int, seed: int) -> dict[str, Any]:
    """See the file's docstring."""
    run = make_credentials(["server", "honest", "peer"])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(run["server"].to_json() + "\n")
    process.stdin.flush()
    address = process.stdout.readline().strip()
    attackers = [Attacker(run, address, seed + number) for number in range(THREADS)]
    times: list[float] = []
    with Endpoint(run["honest"], options=WireOptions(call_timeout=60)) as honest:
        honest.meet("server", address)
        honest.channel("server").call(Message("echo"))
        before, began = _taken(process.pid), time.monotonic()
        threads = [threading.Thread(target=each.go, args=(count // THREADS,)) for each in attackers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            times.append(_call(honest, f"flow {len(times) % 8}"))
            time.sleep(0.002)
        seconds = time.monotonic() - began
        times += [_call(honest, "last") for _ in range(10)]
        after = _taken(process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    refused, malformed = map(int, process.stdout.readline().split())
    process.stdin.close()
    status = process.wait(30)
    done = sum((each.done for each in attackers), Counter[str]())
    return {
        "hostile": done.total(),
        "by kind": dict(done),
        "refused connections": refused,
        "malformed messages": malformed,
        "seconds": round(seconds, 1),
        "honest calls": len(times),
        "median ms": round(1e3 * statistics.median(times), 2),
        "worst ms": round(1e3 * max(times), 1),
        "memory MiB, before and after": (before[0], after[0]),
        "open files, before and after": (before[1], after[1]),
        "threads, before and after": (before[2], after[2]),
        "exit status of the server": status,
    }


def _call(honest: Endpoint, flow: str) -> float:
    began = time.perf_counter()
    answer = honest.channel("server", flow).call(Message("echo", {"said": flow}))
    if answer.body != {"said": flow}:
        raise SystemExit(f"The honest peer got {answer.body}.")
    return time.perf_counter() - began


def _taken(pid: int) -> tuple[float, int, int]:
    """Resident MiB, open files and threads of a process."""
    place = Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    files = len(list((place / "fd").iterdir()))
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1), files, int(fields["Threads"])


if __name__ == "__main__":
    main()
