"""What can happen to a run on a cluster, a function each: it starts the run, does its worst, and waits for the end.

Each is told how to start the run, its folder, the seconds an undisturbed one takes, a source of choices and a limit in
seconds, and returns what it did; with FAILED before it where the run did not end well.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import zmq

from clusters import ClusterRun

Start = Callable[..., ClusterRun]
Trouble = Callable[[Start, Path, float, random.Random, float], str]


def kill(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """A random task, at a random moment from when the first is there."""
    at = draws.uniform(0.05, 1.0) * seconds
    running = start()
    _wait(running, at)
    tasks = running.tasks()
    if not tasks:
        return _outcome(running, limit, f"nothing was left to kill after {at:.1f} s")
    name = draws.choice(sorted(tasks))
    with suppress(psutil.NoSuchProcess):
        tasks[name].kill()
    return _outcome(running, limit, f"{name} after {at:.1f} s")


def pause(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """A task stands still for longer than its connections live, and goes on."""
    return _stopped(start, run, seconds, draws, limit, 4.0)


def silence(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """A task stands still for longer than the controller's patience: it is replaced."""
    return _stopped(start, run, seconds, draws, limit, 45.0)


def slow_host(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """The tasks of one machine run a quarter of the time."""
    running = start()
    _wait_for_steps(running, run)
    slowed = [process for name, process in running.tasks().items() if name in ("store-m1", "worker-1", "sampler-1-0")]
    end = time.monotonic() + 2 * seconds
    while not running.ended() and time.monotonic() < end:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in slowed:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            time.sleep(0.15 if number == signal.SIGSTOP else 0.05)
    return _outcome(running, limit, "m1 at a quarter of its speed")


def garbage(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """Every open port gets noise, half a greeting, and a greeting with noise behind it, again and again."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47)

    def attack(address: tuple[str, int]) -> None:
        noise = draws.randbytes(draws.randrange(1, 4096))
        for sent in (noise, greeting[:20], greeting + noise):
            with suppress(OSError), socket.create_connection(address, 1.0) as peer:
                peer.settimeout(0.2)
                peer.sendall(sent)
                peer.recv(64)

    return _attacked(start(), run, attack, limit, "noise")


def wrong_key(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """Every open port is greeted by a peer without keys, and by one with keys of its own."""
    context = zmq.Context()

    def attack(address: tuple[str, int]) -> None:
        for with_keys in (False, True):
            peer = context.socket(zmq.DEALER)
            peer.setsockopt(zmq.LINGER, 0)
            if with_keys:
                peer.curve_publickey, peer.curve_secretkey = zmq.curve_keypair()
                peer.curve_serverkey = zmq.curve_keypair()[0]
            peer.connect(f"tcp://{address[0]}:{address[1]}")
            with suppress(zmq.ZMQError):
                peer.send_multipart([b"", b"tell", b"\x81\xa4stop\xc3"], zmq.NOBLOCK)
            peer.poll(50)
            peer.close()

    try:
        return _attacked(start(), run, attack, limit, "peers with wrong keys")
    finally:
        context.term()


def full_disk(start: Start, run: Path, seconds: float, draws: random.Random, limit: float) -> str:
    """The run folder's disk is full at a checkpoint: the run stops with a sentence, and goes on when there is room."""
    if os.geteuid() != 0:
        return "not tried: mounting a small disk needs root"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(run)], check=True)
    try:
        running = start()
        _wait_for_steps(running, run)
        filler = run / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
        status, _, complaint = running.finished(limit)
        filler.unlink()
        if status == 0 or "No space left" not in complaint or complaint.count("\n"):
            return f"FAILED: exit status {status}, {complaint[-300:]!r}"
        said = _outcome(start("--resume", str(run)), limit, "stopped with a sentence, and was resumed")
        kept = run.with_suffix(".kept")
        shutil.copytree(run, kept)
    finally:
        subprocess.run(["umount", "-l", str(run)], check=False)
    run.rmdir()
    kept.rename(run)
    return said


TROUBLES: dict[str, Trouble] = {
    "kill": kill,
    "pause": pause,
    "silence": silence,
    "slow-host": slow_host,
    "garbage": garbage,
    "wrong-key": wrong_key,
    "full-disk": full_disk,
}


def _stopped(start: Start, run: Path, seconds: float, draws: random.Random, limit: float, how_long: float) -> str:
    running = start()
    _wait_for_steps(running, run)
    tasks = running.tasks()
    name = draws.choice(sorted(tasks))
    with suppress(psutil.NoSuchProcess):
        tasks[name].suspend()
        _wait(running, how_long)
        tasks[name].resume()
    return _outcome(running, limit, f"{name} for {how_long:g} s")


def _attacked(
    running: ClusterRun, run: Path, attack: Callable[[tuple[str, int]], None], limit: float, what: str
) -> str:
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
