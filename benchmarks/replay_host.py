"""The process that a host of a replay runs: it sleeps as long as its tasks take and sends its flows' bytes, in order.

Standard library alone, so that many start at once on few processors. It reads its part as one line of JSON, says that
it listens, reads when to begin (seconds of the monotonic clock, which all hosts of one kernel share), and answers with
one line: when each of its items started and ended. It stays until its input is closed.

A connection carries one flow at a time and has the mark of its queue. Whoever knows that an item has ended (a task's
host, a flow's receiver) tells those that wait for it, in the most urgent class.
"""

import gc
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections import deque
from heapq import heappop, heappush
from typing import Any

PORT = 29600
_HEAD = struct.Struct("<IIQ")
"""Item, step and bytes that follow; without bytes it may be the news that the item has ended."""
_SEND_BUFFER = 32 << 10
"""Bytes of a connection with the kernel: what lies there, no class puts in order."""
_CONGESTION = b"reno"
"""Every Linux has it; the system's own may be BBR, which takes what a queue's order leaves it for the link's rate."""
_CHUNK = 256 << 10
_ZEROS = memoryview(bytes(_CHUNK))


def main() -> None:
    """Take part in one replay."""
    # Its share of a processor is small, and waiting for one would count as waiting for links.
    os.nice(-10)
    part: dict[str, Any] = json.loads(sys.stdin.readline())
    wires = Wires(part["rank"], part["addresses"], part["urgent"])
    print("listening", flush=True)
    begin = float(sys.stdin.readline())
    wires.meet()
    # A collection would stop everything for a moment.
    gc.disable()
    player = Player(part, wires)
    player.play(begin)
    print(json.dumps({"starts": player.starts, "ends": player.ends}), flush=True)
    # Others may still send what they have to.
    sys.stdin.read()


class Player:
    """Keeps to the order of a part: what may start, starts; what has ended is told."""

    def __init__(self, part: dict[str, Any], wires: "Wires") -> None:
        self._wires, self._steps = wires, int(part["steps"])
        self._runs, self._sends, self._tells = (_by_number(part[name]) for name in ("runs", "sends", "tells"))
        self._receives = set(part["receives"])
        self.starts: list[tuple[int, int, float]] = []
        """Step, item, seconds."""
        self.ends: list[tuple[int, int, float]] = []
        self._missing: dict[tuple[int, int], int] = {}
        self._followers: dict[int, list[tuple[int, int]]] = {}
        for item, waits in _by_number(part["waits"]).items():
            for step in range(self._steps):
                self._missing[step, item] = sum(1 for _, lag in waits if step >= lag)
            for before, lag in waits:
                self._followers.setdefault(before, []).append((item, lag))
        self._timers: list[tuple[float, int, int]] = []
        self._over: deque[tuple[int, int]] = deque()
        """What has ended and may let others start."""
        self._left = self._steps * (len(self._runs) + len(self._receives) + len(self._sends))

    def play(self, begin: float) -> None:
        """Until all that runs, leaves and comes here has ended, and everybody knows."""
        time.sleep(max(0.0, begin - time.monotonic()))
        for (step, item), missing in list(self._missing.items()):
            if missing == 0:
                self._start(step, item)
        self._let_start()
        while self._left or self._wires.unsent:
            pause = self._timers[0][0] - time.monotonic() if self._timers else None
            for item, step in self._wires.arrived(pause):
                if item in self._receives:
                    self._end(step, item)
                else:
                    self._over.append((step, item))
            while self._timers and self._timers[0][0] <= time.monotonic():
                _, step, item = heappop(self._timers)
                self._end(step, item)
            self._let_start()

    def _let_start(self) -> None:
        while self._over:
            step, item = self._over.popleft()
            if item in self._sends:
                self._wires.give_back(item)
                self._left -= 1
            for after, lag in self._followers.get(item, ()):
                following = (step + lag, after)
                if following in self._missing:
                    self._missing[following] -= 1
                    if self._missing[following] == 0:
                        self._start(*following)

    def _start(self, step: int, item: int) -> None:
        now = time.monotonic()
        self.starts.append((step, item, now))
        if item in self._runs:
            seconds = self._runs[item][step]
            if seconds:
                heappush(self._timers, (now + seconds, step, item))
            else:
                self._end(step, item)
            return
        flow = self._sends[item]
        self._wires.send(flow["to"], item, step, flow["sizes"][step], flow["marks"][step])

    def _end(self, step: int, item: int) -> None:
        self.ends.append((step, item, time.monotonic()))
        self._left -= 1
        self._over.append((step, item))
        for peer in self._tells.get(item, ()):
            self._wires.tell(peer, item, step)


class Wires:
    """All connections of a host; marks are types of service, in which the lower two bits are not the class's."""

    def __init__(self, rank: int, addresses: list[str], urgent: int) -> None:
        self._rank, self._addresses, self._urgent = rank, addresses, urgent
        self._server = socket.create_server((addresses[rank], PORT), backlog=1024)
        # What is accepted has this mark too: acknowledgements pass whatever waits on the way back.
        self._server.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, urgent)
        self._server.setblocking(False)
        # Others round up to milliseconds, which add up along a chain of tasks.
        self._selector = selectors.SelectSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._notices: dict[int, Outlet] = {}
        self._idle: dict[int, list[Outlet]] = {}
        self._busy: dict[int, tuple[int, Outlet]] = {}

    def meet(self) -> None:
        """Connect to all others, for notices."""
        others = [peer for peer in range(len(self._addresses)) if peer != self._rank]
        self._notices = {peer: self._connected(peer) for peer in others}

    @property
    def unsent(self) -> bool:
        """Whether something has not been handed to the kernel."""
        return any(isinstance(key.data, Outlet) for key in self._selector.get_map().values())

    def send(self, peer: int, item: int, step: int, size: int, mark: int) -> None:
        """A flow, over a connection that no other has."""
        idle = self._idle.setdefault(peer, [])
        outlet = idle.pop() if idle else self._connected(peer)
        self._busy[item] = (peer, outlet)
        outlet.line.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, mark)
        outlet.add(_HEAD.pack(item, step, size), size)
        self._push(outlet)

    def give_back(self, item: int) -> None:
        """A flow's connection, once all has arrived."""
        peer, outlet = self._busy.pop(item)
        self._idle[peer].append(outlet)

    def tell(self, peer: int, item: int, step: int) -> None:
        """The news that an item has ended."""
        self._notices[peer].add(_HEAD.pack(item, step, 0))
        self._push(self._notices[peer])

    def arrived(self, pause: float | None) -> list[tuple[int, int]]:
        """Items and steps of what has come whole, after so many seconds at most; meanwhile what can leave, leaves."""
        out: list[tuple[int, int]] = []
        for key, _ in self._selector.select(pause if pause is None else max(0.0, pause)):
            if isinstance(key.data, Outlet):
                self._push(key.data)
            elif isinstance(key.data, Inlet):
                out += key.data.take()
            else:
                line, _ = self._server.accept()
                line.setblocking(False)
                self._selector.register(line, selectors.EVENT_READ, Inlet(line))
        return out

    def _push(self, outlet: "Outlet") -> None:
        watched = outlet.line in self._selector.get_map()
        if not outlet.push():
            if not watched:
                self._selector.register(outlet.line, selectors.EVENT_WRITE, outlet)
        elif watched:
            self._selector.unregister(outlet.line)

    def _connected(self, peer: int) -> "Outlet":
        line = socket.socket()
        line.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self._urgent)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION)
        line.connect((self._addresses[peer], PORT))
        line.setblocking(False)
        return Outlet(line)


class Outlet:
    """The sending end of a connection."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self._heads, self._left = bytearray(), 0

    def add(self, head: bytes, size: int = 0) -> None:
        """A head and so many bytes."""
        self._heads += head
        self._left += size

    def push(self) -> bool:
        """Send what the kernel takes; whether that was all."""
        try:
            while self._heads:
                del self._heads[: self.line.send(self._heads)]
            while self._left:
                self._left -= self.line.send(_ZEROS[: self._left])
        except BlockingIOError:
            return False
        return True


class Inlet:
    """The receiving end of a connection."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._room = line, memoryview(bytearray(_CHUNK))
        self._head, self._left = bytearray(), 0
        self._item, self._step = 0, 0

    def take(self) -> list[tuple[int, int]]:
        """Read what is there; items and steps that it completes."""
        count = self._line.recv_into(self._room)
        if count == 0:
            raise ConnectionError("a host has left before all was done")
        data, out = self._room[:count], []
        while data:
            if self._left == 0:
                lacking = _HEAD.size - len(self._head)
                self._head += data[:lacking]
                data = data[lacking:]
                if len(self._head) < _HEAD.size:
                    break
                self._item, self._step, self._left = _HEAD.unpack(self._head)
                self._head.clear()
            used = min(len(data), self._left)
            self._left -= used
            data = data[used:]
            if self._left == 0:
                out.append((self._item, self._step))
        return out


def _by_number(named: dict[str, Any]) -> dict[int, Any]:
    """JSON's names are text."""
    return {int(name): value for name, value in named.items()}


if __name__ == "__main__":
    main()
