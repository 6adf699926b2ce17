"""Hosts in a box: network namespaces on one switch, each with an address and a link of its own rate.

The switch is a bridge in a namespace of its own, so that nothing of the machine's own network is touched and deleting
namespaces deletes everything. A link is limited both ways: what a host sends by its own interface, what it receives by
the switch's. Names carry the number of the process that made them: what a killed process left is removed by the next.
"""

import argparse
import ctypes
import fcntl
import ipaddress
import json
import multiprocessing
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock.cluster import run
from penstock.cluster.launch.local import LocalLauncher, LocalProcess
from penstock.cluster.layout import Setup
from penstock.errors import PenstockError
from products_graph import show

PREFIX = "pstb"
DEVICE = "eth0"
"""What every host calls its interface."""
_NAMES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_CONGESTION = "cubic"
_QUEUE_SECONDS, _LEAST_QUEUE = 0.02, 512 << 10
"""A link's queue: so long at its rate, but room for some of the kernel's 64 KiB bundles; with 128 KiB a third of what
crosses a link of 20 Mbit/s is dropped and sent again."""
_SMALL_BUNDLE = 4 << 10
"""Bytes of the kernel's bundles where a benchmark asks for shorter queues."""
_BURST_SECONDS, _LEAST_BURST = 0.001, 16 << 10
_UNBOUNDED = 64 << 20
"""Bytes of a queue that never overflows here."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def shown_on_hosts(
    name: str, options: argparse.Namespace, measure: Callable[[argparse.Namespace], list[dict[str, Any]]]
) -> int:
    """Print the rows that a benchmark measures on hosts, keep them in `--out` if given; returns the exit status."""
    try:
        check_allowed()
        rows = measure(options)
    except PenstockError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    if options.out is not None:
        options.out.write_text(json.dumps({"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}))
    show(name, rows, options.json)
    return 0


@dataclass(frozen=True)
class Host:
    """One of them."""

    namespace: str
    address: str
    rate_mbit: float
    port: str
    """The switch's end of its link."""
    switch: str
    """The switch's namespace."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread starts in the block, threads and processes too, is on this host."""
        with _own_namespace() as back:
            _enter(_NAMES / self.namespace)
            try:
                yield
            finally:
                _set_namespace(back)

    def run(self, *command: str) -> str:
        """A command on this host; what it prints."""
        return _ip("netns", "exec", self.namespace, *command)

    def carried(self) -> tuple[int, int]:
        """Bytes that have left the host and come to it, with all headers, as its interface has counted."""
        with self.entered():
            counts = Path("/proc/thread-self/net/dev").read_text().splitlines()
        fields = next(line.split(":")[1].split() for line in counts if line.strip().startswith(f"{DEVICE}:"))
        return int(fields[8]), int(fields[0])


class HostLauncher(LocalLauncher):
    """Starts every task on the host that stands for its machine."""

    def __init__(self, run: Path, machines: Mapping[str, Host]) -> None:
        super().__init__(run)
        self._machines = machines

    def start(self, setup: Setup) -> LocalProcess:
        """Start a task: a process is where the thread was that started it."""
        with self._machines[setup.task.machine].entered():
            return super().start(setup)


@contextmanager
def started_on(machines: Mapping[str, Host], launcher: type[HostLauncher] = HostLauncher) -> Iterator[None]:
    """Runs that start in the block have their tasks on these hosts, by machine; this thread is on the first of them."""
    first = next(iter(machines.values()))
    with first.entered(), patch.object(run, "make_launcher", lambda cluster, folder: launcher(folder, machines)):
        yield


@contextmanager
def hosts(rates_mbit: Sequence[float], queue_bytes: int | None = None) -> Iterator[list[Host]]:
    """As many hosts as there are rates; they can reach each other and nothing else. Needs root, and Linux.

    `queue_bytes` is what the queue of a link holds; None: 512 KiB, or 20 ms at its rate where that is more. A fast link
    empties 512 KiB in less than a millisecond, one of 60 Mbit/s in 70: every short message then waits as long.
    """
    check_allowed()
    remove_leftovers()
    # A second set of this process has numbers of its own.
    mine = _mine()
    first = next(number for number in range(1000) if f"{mine}s{number}" not in _names())
    switch = f"{mine}s{first}"
    made = [switch]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        found = []
        for number, rate in enumerate(rates_mbit):
            host = Host(f"{switch}h{number}", f"10.77.0.{number + 1}", rate, f"port{number}", switch)
            made.append(host.namespace)
            _connect(host, queue_bytes)
            found.append(host)
        yield found
    finally:
        for name in reversed(made):
            _remove(name)


def join_directly(one: Host, other: Host, number: int, rate_mbit: float) -> tuple[str, str]:
    """A further link between two hosts, of its own rate both ways; returns the addresses of its two ends."""
    device, ends = f"link{number}", (f"10.78.{number}.1", f"10.78.{number}.2")
    _ip("-n", one.namespace, "link", "add", device, "type", "veth", "peer", "name", device, "netns", other.namespace)
    for host, address in zip((one, other), ends, strict=True):
        _ip("-n", host.namespace, "address", "add", f"{address}/24", "dev", device)
        _ip("-n", host.namespace, "link", "set", device, "up")
        _limit(host.namespace, device, rate_mbit)
    return ends


def bound_ports(host: Host, queue_bytes: int) -> None:
    """From now on a host's link carries single packets at its exact rate, and the switch's port holds so many bytes.

    What waits in the host itself is not bounded; there is no burst, so that short messages take their time too.
    """
    for namespace, device, queue in (
        (host.namespace, DEVICE, _UNBOUNDED),
        (host.switch, host.port, queue_bytes),
    ):
        _ip("-n", namespace, "link", "set", "dev", device, "gso_max_segs", "1")
        _limit_exactly(namespace, device, host.rate_mbit, queue)
    _keep_no_metrics(host.namespace)


@contextmanager
def joined_by_relay(one: Host, other: Host, rate_mbit: float, delay_s: float) -> Iterator[tuple[str, str]]:
    """A further link between two hosts over a process that holds every packet for so long; the addresses of its ends.

    It replaces what the kernel's netem would do, which is not built everywhere.
    """
    ends = ("10.79.0.1", "10.79.0.2")
    files = []
    for host, address, peer in zip((one, other), ends, reversed(ends), strict=True):
        with host.entered():
            file = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", b"relay", _IFF_TUN | _IFF_NO_PI))
            files.append(file)
        _ip("-n", host.namespace, "address", "add", address, "peer", peer, "dev", "relay")
        _ip("-n", host.namespace, "link", "set", "relay", "mtu", "1500", "up")
        _limit_exactly(host.namespace, "relay", rate_mbit, _UNBOUNDED, header=0)
        _keep_no_metrics(host.namespace)
    relay = multiprocessing.get_context("fork").Process(target=_relay, args=(*files, delay_s), daemon=True)
    relay.start()
    try:
        yield ends
    finally:
        relay.terminate()
        relay.join()
        for file in files:
            os.close(file)


def take_turns_first() -> None:
    """From now on this process runs as soon as it can: what it times is the network, not its place in a queue."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _relay(one: int, other: int, delay_s: float) -> None:
    """Hand packets on between two devices, each after a delay; until this process is ended."""
    waiting: deque[tuple[float, int, bytes]] = deque()
    take_turns_first()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for file in select.select([one, other], [], [], left)[0]:
            waiting.append((time.monotonic() + delay_s, other if file == one else one, os.read(file, 1 << 16)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, file, packet = waiting.popleft()
            os.write(file, packet)


@contextmanager
def two_racks(count: int, rate_mbit: float, lanes: int) -> Iterator[list[Host]]:
    """Hosts in two racks of `count`, whose switches are joined by so many links of this rate.

    The switches route, and hash flows onto these links by the addresses and ports of a connection.
    """
    check_allowed()
    remove_leftovers()
    mine = _mine()
    switches = [f"{mine}s9{rack}" for rack in range(2)]
    made = list[str]()
    try:
        for switch in switches:
            made.append(switch)
            _ip("netns", "add", switch)
            for name in ("ip_forward", "fib_multipath_hash_policy"):
                _ip("netns", "exec", switch, "sysctl", "-qw", f"net.ipv4.{name}=1")
        for lane in range(lanes):
            device, (here, there) = f"lane{lane}", switches
            _ip("-n", here, "link", "add", device, "type", "veth", "peer", "name", device, "netns", there)
            for rack, switch in enumerate(switches):
                _ip("-n", switch, "address", "add", f"10.82.{lane}.{rack + 1}/24", "dev", device)
                _ip("-n", switch, "link", "set", device, "gso_max_segs", "1", "up")
                _limit_exactly(switch, device, rate_mbit, _UNBOUNDED)
        found = []
        for number in range(2 * count):
            rack = number // count
            host = Host(f"{switches[0]}h{number}", f"10.81.{number}.2", rate_mbit, f"port{number}", switches[rack])
            made.append(host.namespace)
            _ip("netns", "add", host.namespace)
            _ip(
                *("-n", host.switch, "link", "add", host.port, "type", "veth"),
                *("peer", "name", DEVICE, "netns", host.namespace),
            )
            _ip("-n", host.switch, "address", "add", f"10.81.{number}.1/24", "dev", host.port)
            _ip("-n", host.switch, "link", "set", host.port, "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", DEVICE)
            _ip("-n", host.namespace, "link", "set", DEVICE, "up")
            _ip("-n", host.namespace, "route", "add", "default", "via", f"10.81.{number}.1")
            ways = [("nexthop", "via", f"10.82.{lane}.{rack + 1}", "dev", f"lane{lane}") for lane in range(lanes)]
            _ip(
                "-n",
                switches[1 - rack],
                "route",
                "add",
                f"10.81.{number}.0/24",
                *(word for way in ways for word in way),
            )
            bound_ports(host, _UNBOUNDED)
            found.append(host)
        yield found
    finally:
        for name in reversed(made):
            _remove(name)


def _limit_exactly(namespace: str, device: str, rate_mbit: float, queue_bytes: int, header: int = 14) -> None:
    """What leaves by a device leaves packet by packet at this rate; `queue_bytes` may wait."""
    burst = str(2 * (1500 + header))
    limits = "rate", f"{round(rate_mbit * 1e6)}bit", "burst", burst, "limit", str(queue_bytes)
    _tc(namespace, "qdisc", "replace", "dev", device, "root", "handle", "9:", "tbf", *limits)


def _keep_no_metrics(namespace: str) -> None:
    """Make every connection begin as the first one does."""
    _ip("netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1")


def enter_host(namespace: str) -> None:
    """From now on this thread, and what it starts, is on the host with this name."""
    _enter(_NAMES / namespace)


def limit_again(host: Host, rate_mbit: float) -> None:
    """From now on a host's link carries this much, both ways."""
    rate = f"{round(rate_mbit * 1e6)}bit"
    for namespace, device in ((host.namespace, DEVICE), (host.switch, host.port)):
        _tc(
            *(namespace, "class", "change", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", rate),
            *("ceil", rate, "burst", str(_LEAST_BURST), "cburst", str(_LEAST_BURST), "quantum", "60000"),
        )


def change_rate(hosts: Sequence[Host], number: int, rate_mbit: float) -> None:
    """From now on what leaves these hosts by a link of `join_directly` leaves at this rate."""
    rate = f"{round(rate_mbit * 1e6)}bit"
    for host in hosts:
        _tc(
            *(host.namespace, "class", "change", "dev", f"link{number}", "parent", "1:", "classid", "1:1", "htb"),
            *("rate", rate, "ceil", rate, "burst", str(_LEAST_BURST), "cburst", str(_LEAST_BURST), "quantum", "60000"),
        )


def check_allowed() -> None:
    """Refuse with a sentence where namespaces cannot be made."""
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        raise PenstockError(
            "Hosts in a box are network namespaces, which only Linux has: run this on Linux.",
            code="unsupported-combination",
        )
    if os.geteuid() != 0:
        raise PenstockError("Making network namespaces needs root: run this with sudo.", code="not-permitted")
    try:
        subprocess.run(["tc", "-V"], capture_output=True, check=True)
        subprocess.run(["ip", "-V"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise PenstockError("The commands ip and tc are not here: install iproute2.", code="not-installed") from None


def remove_leftovers() -> list[str]:
    """Remove what processes that are gone have left; returns the namespaces' names."""
    gone = [name for name in _names() if not Path(f"/proc/{_maker(name)}").exists()]
    for name in gone:
        _remove(name)
    return gone


def _connect(host: Host, queue_bytes: int | None) -> None:
    _ip("netns", "add", host.namespace)
    _ip("-n", host.switch, "link", "add", host.port, "type", "veth", "peer", "name", DEVICE, "netns", host.namespace)
    _ip("-n", host.switch, "link", "set", host.port, "master", "bridge", "up")
    _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", DEVICE)
    _ip("-n", host.namespace, "link", "set", DEVICE, "up")
    _ip("-n", host.namespace, "link", "set", "lo", "up")
    # Linux's default, whatever this machine has: several connections with BBR share a slow link badly.
    network = str(ipaddress.ip_network(f"{host.address}/24", strict=False))
    route = network, "dev", DEVICE, "scope", "link", "src", host.address
    _ip("-n", host.namespace, "route", "replace", *route, "congctl", _CONGESTION)
    for namespace, device in ((host.namespace, DEVICE), (host.switch, host.port)):
        if queue_bytes is not None:
            _ip("-n", namespace, "link", "set", device, "gso_max_size", str(_SMALL_BUNDLE))
        _limit(namespace, device, host.rate_mbit, queue_bytes)


def _limit(namespace: str, device: str, rate_mbit: float, queue_bytes: int | None = None) -> None:
    """What leaves by a device leaves at this rate; what waits is bounded, as a switch's buffer is."""
    bytes_a_second = rate_mbit * 1e6 / 8
    burst = max(_LEAST_BURST, round(bytes_a_second * _BURST_SECONDS))
    queue = queue_bytes or max(_LEAST_QUEUE, round(bytes_a_second * _QUEUE_SECONDS))
    rate = f"{round(rate_mbit * 1e6)}bit"
    _tc(namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
    _tc(
        *(namespace, "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", rate),
        *("burst", str(burst), "cburst", str(burst), "quantum", "60000"),
    )
    _tc(namespace, "qdisc", "add", "dev", device, "parent", "1:1", "handle", "2:", "bfifo", "limit", str(queue))


def _remove(name: str) -> None:
    """A namespace, and whatever still runs in it: its maker started that, and is gone or done."""
    with suppress(PenstockError):
        for process in _ip("netns", "pids", name).split():
            if int(process) != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        _ip("netns", "delete", name)


def _names() -> list[str]:
    return sorted(path.name for path in _NAMES.glob(f"{PREFIX}*")) if _NAMES.exists() else []


def _mine() -> str:
    return f"{PREFIX}{os.getpid()}"


def _maker(name: str) -> str:
    return name.removeprefix(PREFIX).partition("s")[0]


@contextmanager
def _own_namespace() -> Iterator[int]:
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield here
    finally:
        os.close(here)


def _enter(path: Path) -> None:
    there = os.open(path, os.O_RDONLY)
    try:
        _set_namespace(there)
    finally:
        os.close(there)


def _set_namespace(descriptor: int) -> None:
    # os.setns came with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise PenstockError(
            f"The network namespace could not be entered ({os.strerror(number)}): run this as root.",
            code="not-permitted",
        )


def _tc(namespace: str, *arguments: str) -> str:
    return _run("tc", "-n", namespace, *arguments)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise PenstockError(f"`{' '.join(command)}` failed: {said}", code="external-failure")
    return done.stdout
