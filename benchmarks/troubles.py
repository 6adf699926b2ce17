"""What can happen to a run on a cluster, a function each: it starts the run, does its worst, and waits for the end.

Each returns what it did, with FAILED before it where the run did not end well.
"""

import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import psutil
import yaml

from clusters import ClusterRun, cluster_file
from hosts import Host, HostLauncher, hosts
from penstock.cluster import run as starting
from penstock.errors import PenstockError
from penstock.progress import Progress
from penstock.train.job import make_job
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import Tls, make_credentials


@dataclass(frozen=True)
class Stage:
    """Where a trouble plays."""

    run: Path
    arguments: list[str]
    """The run's command line."""
    seconds: float
    """That an undisturbed run takes."""
    draws: random.Random
    limit: float
    """Seconds after which a run counts as hanging."""

    def start(self, *arguments: str) -> ClusterRun:
        """Start the run, or a command of others' arguments."""
        return ClusterRun(self.run, *(arguments or self.arguments))


Trouble = Callable[[Stage], str]
MISSED = "the run had ended before anything could happen"


def kill(on: Stage) -> str:
    """A random task, at a random moment from when the first is there."""
    at = on.draws.uniform(0.0, 0.95) * on.seconds
    running = on.start()
    while not running.tasks() and not running.ended():
        time.sleep(0.01)
    _wait(running, at)
    tasks = running.tasks()
    if not tasks:
        return _outcome(running, on.limit, MISSED)
    name = on.draws.choice(sorted(tasks))
    with suppress(psutil.NoSuchProcess):
        tasks[name].kill()
    return _outcome(running, on.limit, f"{name} after {at:.1f} s")


def controller(on: Stage) -> str:
    """The controller is killed at a random moment; its tasks end by themselves, and the run is resumed."""
    running = on.start()
    _wait_for_steps(running, on.run)
    at = on.draws.uniform(0.0, 0.5) * on.seconds
    _wait(running, at)
    if running.ended():
        return _outcome(running, on.limit, MISSED)
    running.process.kill()
    running.finished(on.limit)
    end = time.monotonic() + on.limit
    while running.left() and time.monotonic() < end:
        time.sleep(0.1)
    if left := running.left():
        return f"FAILED: {left} went on without their controller"
    return _outcome(on.start("--resume", str(on.run)), on.limit, f"the controller {at:.1f} s after the first step")


def pause(on: Stage) -> str:
    """A task stands still for longer than its connections live, and goes on."""
    return _stopped(on, 4.0)


def silence(on: Stage) -> str:
    """A task stands still for longer than the controller's patience: it is replaced."""
    return _stopped(on, 75.0)


def slow_host(on: Stage) -> str:
    """The tasks of one machine run a quarter of the time."""
    running = on.start()
    _wait_for_steps(running, on.run)
    slowed = [process for name, process in running.tasks().items() if name in ("store-m1", "worker-1", "sampler-1-0")]
    end = time.monotonic() + 2 * on.seconds
    while not running.ended() and time.monotonic() < end:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in slowed:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            time.sleep(0.15 if number == signal.SIGSTOP else 0.05)
    return _outcome(running, on.limit, "m1 at a quarter of its speed")


def garbage(on: Stage) -> str:
    """Every open port gets noise, half a greeting of TLS, and a greeting with noise behind it, again and again."""
    greeting = _first_words()

    def attack(address: tuple[str, int]) -> None:
        noise = on.draws.randbytes(on.draws.randrange(1, 4096))
        for sent in (noise, greeting[:20], greeting + noise):
            with suppress(OSError), socket.create_connection(address, 1.0) as peer:
                peer.settimeout(0.2)
                peer.sendall(sent)
                peer.recv(64)

    return _attacked(on.start(), attack, on.limit, "noise")


def wrong_key(on: Stage) -> str:
    """Every open port is called by a peer without a certificate, and by one with a certificate of another run."""
    stranger = Tls(make_credentials(["worker-0", "controller"])["worker-0"], WireOptions())
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE

    def attack(address: tuple[str, int]) -> None:
        for wrap in (nobody.wrap_socket, lambda own: stranger.wrap(own, server_side=False)):
            with suppress(OSError), socket.create_connection(address, 1.0) as plain:
                plain.settimeout(0.05)
                with wrap(plain) as peer:
                    peer.do_handshake()
                    peer.sendall(b"\x81\xa4stop\xc3")
                    peer.recv(64)

    return _attacked(on.start(), attack, on.limit, "peers with wrong keys")


def _first_words() -> bytes:
    """What a client of TLS 1.3 says first."""
    context, sent = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def full_disk(on: Stage) -> str:
    """The run folder's disk is full at a checkpoint: the run stops with a sentence, and goes on when there is room."""
    if os.geteuid() != 0:
        return "not tried: mounting a small disk needs root"
    # A run folder appears whole, so it cannot be a mounted disk itself: it lies on one.
    disk = on.run.with_suffix(".disk")
    run = disk / "run"
    small = replace(on, run=run, arguments=[str(run) if each == str(on.run) else each for each in on.arguments])
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    try:
        running = small.start()
        _wait_for_steps(running, run)
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        status, _, complaint = running.finished(on.limit)
        filler.unlink()
        if status == 0 or "No space left" not in complaint or complaint.count("\n"):
            return f"FAILED: exit status {status}, {complaint[-300:]!r}"
        said = _outcome(small.start("--resume", str(run)), on.limit, "stopped with a sentence, and was resumed")
        shutil.copytree(run, on.run)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
        disk.rmdir()
    return said


def cut_links(on: Stage) -> str:
    """The link of one host is down for longer than connections live, twice; hosts are network namespaces."""
    if os.geteuid() != 0:
        return "not tried: making network namespaces needs root"
    given = dict(zip(on.arguments[::2], on.arguments[1::2], strict=True))
    fields = yaml.safe_load(Path(given.pop("--cluster")).read_text())
    job = {name.removeprefix("--").replace("-", "_"): yaml.safe_load(value) for name, value in given.items()}
    with hosts([1000.0] * len(fields["machines"])) as found:
        for machine, host in zip(fields["machines"], found, strict=True):
            machine["address"] = host.address
        cluster = cluster_file(on.run.with_suffix(".yaml"), **fields)
        named = {machine["name"]: host for machine, host in zip(fields["machines"], found, strict=True)}
        cable = Cable(found[-1])
        with patch.object(starting, "make_launcher", lambda cluster, run: HostLauncher(run, named)), found[0].entered():
            try:
                starting.start_cluster_run(make_job({**job, "run": str(on.run)}), cluster, False, cable)
            except PenstockError as error:
                return f"FAILED: {error}"
            finally:
                cable.join()
    return f"{fields['machines'][-1]['name']} cut off {cable.cuts} times for {Cable.SECONDS:g} s"


class Cable(Progress):
    """Pulls a host's cable when the second and the fifth epoch have ended, and puts it back."""

    SECONDS = 4.0

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host, self._epochs, self.cuts = host, 0, 0
        self._thread: threading.Thread | None = None

    def status(self, line: str) -> None:
        """An epoch has ended."""
        self._epochs += 1
        if self._epochs in (2, 5):
            self.join()
            self._thread = threading.Thread(target=self._cut)
            self._thread.start()

    def join(self) -> None:
        """Until the cable is back."""
        if self._thread is not None:
            self._thread.join()

    def _cut(self) -> None:
        self.cuts += 1
        port = ["ip", "-n", self._host.switch, "link", "set", self._host.port]
        subprocess.run([*port, "down"], check=True)
        time.sleep(self.SECONDS)
        subprocess.run([*port, "up"], check=True)


TROUBLES: dict[str, Trouble] = {
    "kill": kill,
    "controller": controller,
    "pause": pause,
    "silence": silence,
    "slow-host": slow_host,
    "garbage": garbage,
    "wrong-key": wrong_key,
    "full-disk": full_disk,
    "cut-links": cut_links,
}


def _stopped(on: Stage, how_long: float) -> str:
    running = on.start()
    _wait_for_steps(running, on.run)
    tasks = running.tasks()
    name = on.draws.choice(sorted(tasks))
    with suppress(psutil.NoSuchProcess):
        tasks[name].suspend()
        _wait(running, how_long)
        tasks[name].resume()
    return _outcome(running, on.limit, f"{name} for {how_long:g} s")


def _attacked(running: ClusterRun, attack: Callable[[tuple[str, int]], None], limit: float, what: str) -> str:
    """Attack every port of every process of a run until it ends."""
    attacks, over = [0], threading.Event()

    def go_on() -> None:
        while not over.is_set():
            for address in _ports(running):
                attack(address)
                attacks[0] += 1
            time.sleep(0.05)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        said = _outcome(running, limit, what)
    finally:
        over.set()
        thread.join()
    return f"{said}, {attacks[0]} times" if attacks[0] else "FAILED: no port was found"


def _ports(running: ClusterRun) -> list[tuple[str, int]]:
    """Where the controller and its tasks listen."""
    found = []
    for pid in [running.process.pid, *(task.pid for task in running.tasks().values())]:
        with suppress(psutil.Error):
            every = psutil.Process(pid).net_connections(kind="tcp")
            found += [(each.laddr.ip, each.laddr.port) for each in every if each.status == psutil.CONN_LISTEN]
    return found


def _wait(running: ClusterRun, seconds: float) -> None:
    """So long, or until the run has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not running.ended():
        time.sleep(0.005)


def _wait_for_steps(running: ClusterRun, run: Path) -> None:
    """Until it trains."""
    while not running.ended() and not (run / "metrics.jsonl").exists():
        time.sleep(0.01)


def _outcome(running: ClusterRun, limit: float, what: str) -> str:
    """Wait for the end of a run."""
    status, _, complaint = running.finished(limit)
    left = running.left()
    if status or left:
        return f"FAILED: {what}; exit status {status}, {complaint[-300:]!r}, left {left}"
    return what
