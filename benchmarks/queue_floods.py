"""Does a service stay, small and quick, while others flood it? Loopback only, bounded in count and in time.

`sockets`: connections without a token that begin a request and never end it, more than the service may open. `bodies`:
requests without a token that send all but the last byte of a body. `forecasts`: jobs whose model is absurdly large,
beside one ordinary job. `requests`: hostile requests, with and without the token. Each prints what a well-behaved
client noticed meanwhile, and what the service took.
Run: python benchmarks/queue_floods.py [sockets] [bodies] [forecasts] [requests] [--count N] [--seed 0] [--json]
"""

import argparse
import json
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from hostile_requests import hostile_request, status_of
from penstock.graph.generate import make_graph, recipe_named
from penstock.service.folder import ServiceFolder
from queue_service import ServiceProcess

DESCRIPTORS = 1024
"""Descriptors that the service may open: what most systems allow by default."""
LONGEST_S = 60.0
"""Seconds of a flood."""
ABSURD = 1 << 31
_BODY = (1 << 20) - 1
_SHOWN = 3000
"""Characters of a traceback."""


def main() -> None:
    arguments = _arguments()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if hard > soft else (soft, hard))
    answer = {}
    for name in arguments.floods or FLOODS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            service = ServiceProcess(Path(folder) / "queue", descriptors=DESCRIPTORS)
            service.start()
            stack.callback(_stopped, service)
            watched = Watched(service)
            stack.callback(watched.close)
            found = FLOODS[name](service, arguments.count, arguments.seed)
            answer[name] = {**found, **watched.ended()}
    if arguments.json:
        print(json.dumps(answer))
        return
    for name, found in answer.items():
        print(f"{name}: " + ", ".join(f"{field} {value}" for field, value in found.items()))


class Watched:
    """What a well-behaved client notices of a flood: each second it asks for the devices."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service, self._ended = service, threading.Event()
        self._slowest, self._failed, self._asked, self._descriptors, self._bytes = 0.0, 0, 0, 0, 0
        self._first = _bytes_of(service.pid)
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def ended(self) -> dict[str, Any]:
        """Whether the service still runs, and what was noticed."""
        self.close()
        said = (self._service.folder.parent / "serve.log").read_text(errors="replace")
        return {
            "service runs": self._service.runs,
            "asked": self._asked,
            "refused or late": self._failed,
            "slowest answer, s": round(self._slowest, 2),
            "most descriptors": self._descriptors,
            "service grew by, MB": round((self._bytes - self._first) / 1e6),
            "tracebacks": said.count("Traceback"),
            **({"first": said[said.index("Traceback") :][-_SHOWN:]} if "Traceback" in said else {}),
        }

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            began = time.monotonic()
            self._asked += 1
            try:
                self._service.queue.devices()
            except Exception:
                self._failed += 1
            self._slowest = max(self._slowest, time.monotonic() - began)
            with suppress(OSError):
                self._descriptors = max(self._descriptors, len(list(Path(f"/proc/{self._service.pid}/fd").iterdir())))
            self._bytes = max(self._bytes, _bytes_of(self._service.pid))


def flood_of_sockets(service: ServiceProcess, count: int, seed: int) -> dict[str, Any]:
    """Half of a request's headers on each of `count` connections, 1,200 by default, kept open while a job trains."""
    count = count or 1200
    graph = _graph(service.folder.parent / "graph")
    opened = connected(service, count, b"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    number, ended = 0, False
    with suppress(Exception):
        number = service.queue.submit({"graph": str(graph), "epochs": 2, "threads": 1, "hidden": 8})[0]
        ended = _until(lambda: not service.runs or _state(service, number) in ("ended", "failed"), LONGEST_S)
    left = sum(_is_open(each) for each in opened)
    for each in opened:
        each.close()
    ended = ended and _state(service, number) == "ended"
    return {"sockets": len(opened), "still open": left, "the job ended": ended}


def flood_of_bodies(service: ServiceProcess, count: int, seed: int) -> dict[str, Any]:
    """All but one byte of a body of 1 MiB on each of `count` connections, 700 by default, without a token."""
    count = count or 700
    head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {_BODY + 1}\r\n\r\n".encode()
    opened = connected(service, count, head)
    left, until = dict.fromkeys(opened, _BODY), time.monotonic() + LONGEST_S / 2
    piece = b" " * 65536
    while any(left.values()) and time.monotonic() < until:
        moved = 0
        for each in [one for one, missing in left.items() if missing]:
            try:
                moved += (sent := each.send(piece[: left[each]], socket.MSG_DONTWAIT))
                left[each] -= sent
            except BlockingIOError:
                continue
            except OSError:
                left[each] = 0
        if not moved:
            time.sleep(0.05)
    time.sleep(2)
    for each in opened:
        each.close()
    return {"connections": len(opened)}


def flood_of_forecasts(service: ServiceProcess, count: int, seed: int) -> dict[str, Any]:
    """`count` jobs with an absurd `hidden`, 3 by default, and then an ordinary one."""
    count = count or 3
    graph = _graph(service.folder.parent / "graph")
    job = {"graph": str(graph), "epochs": 1, "threads": 1}
    absurd = service.queue.submit(job, sweep={"hidden": [ABSURD + 2 * at for at in range(count)]})
    number = service.queue.submit({**job, "hidden": 8})[0]
    began, most = time.monotonic(), 0
    waited: float | None = None
    while time.monotonic() - began < 4 * LONGEST_S:
        most = max(most, _bytes_of_tree(service.pid))
        states = [_state(service, each) for each in (*absurd, number)]
        if waited is None and states[-1] in ("waiting", "starting", "running", "ended"):
            waited = time.monotonic() - began
        if all(state in ("ended", "failed") for state in states):
            break
        time.sleep(0.1)
    return {
        "absurd jobs": [_state(service, each) for each in absurd],
        "why": str(service.queue.job(absurd[0])["reason"])[:160],
        "all settled after, s": round(time.monotonic() - began, 1),
        "the ordinary job was forecast after, s": None if waited is None else round(waited, 1),
        "most memory of forecasts, MB": round(most / 1e6),
    }


def flood_of_requests(service: ServiceProcess, count: int, seed: int) -> dict[str, Any]:
    """`count` hostile requests, 2,000 by default, half of them with the token."""
    folder, draws, found = ServiceFolder(service.folder), random.Random(seed), Counter[str]()
    address, token = folder.address(), folder.token()
    failures: list[str] = []
    for at in range(count or 2000):
        request = hostile_request(draws, token if at % 2 else None, str(service.folder))
        status = status_of(address, request)
        found[status] += 1
        if status.startswith("5") and len(failures) < 3:
            failures.append(repr(request[:300]))
    return {"answers": dict(sorted(found.items())), "failures": failures}


FLOODS: dict[str, Callable[[ServiceProcess, int, int], dict[str, Any]]] = {
    "sockets": flood_of_sockets,
    "bodies": flood_of_bodies,
    "forecasts": flood_of_forecasts,
    "requests": flood_of_requests,
}


def _graph(folder: Path) -> Path:
    """300 vertices, which is little enough that what a job takes is its model."""
    make_graph(recipe_named("synthetic-arxiv").scaled(300 / 169_343), folder)
    return folder


def connected(service: ServiceProcess, count: int, said: bytes) -> list[socket.socket]:
    """Connections on which something was said; those that the service does not take in a second are left out."""
    address, opened = ServiceFolder(service.folder).address(), list[socket.socket]()
    until = time.monotonic() + LONGEST_S
    while len(opened) < count and time.monotonic() < until:
        with suppress(OSError):
            connection = socket.create_connection(address, timeout=1)
            opened.append(connection)
            connection.sendall(said)
    return opened


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _state(service: ServiceProcess, number: int) -> str:
    try:
        return str(service.queue.job(number)["state"])
    except Exception:
        return "unknown"


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.2)
    return condition()


def _bytes_of(pid: int) -> int:
    """Resident memory of a process, pages of files not counted."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


def _bytes_of_tree(pid: int) -> int:
    """The same of the largest process that it has started, and of those that these have."""
    parents = dict[int, int]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    for _ in range(3):
        found |= {child for child, parent in parents.items() if parent in found}
    return max((_bytes_of(each) for each in found - {pid}), default=0)


def _stopped(service: ServiceProcess) -> None:
    if service.runs:
        service.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("floods", nargs="*", choices=[*FLOODS, []], metavar="FLOOD")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
