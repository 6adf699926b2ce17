"""Processes as the system knows them: which one a number stands for, what memory it has, and how to end it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.service.clock import boot

_GONE_S = 10.0


class ProcessName(NamedTuple):
    """One process for good: numbers are used again, but not with the same start."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessName | None":
        """The process that has this number now; None where there is none, or only what is left of a dead one."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return _started(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal to the process and to its session, if it is still there."""
        if not self.is_alive:
            return
        with suppress(ProcessLookupError, PermissionError):
            # A task's process leads a session, in which stays what it starts itself; one that has only just been forked
            # does not yet.
            send = os.killpg if os.getpgid(self.pid) == self.pid else os.kill
            send(self.pid, number)

    def kill(self) -> bool:
        """End it at once and wait until it is gone; whether it is."""
        until = time.monotonic() + _GONE_S
        while self.is_alive and time.monotonic() < until:
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        return not self.is_alive

    def resident_bytes(self) -> int:
        """Memory that it alone holds: without pages of files, which the system takes back when it needs them."""
        if not sys.platform.startswith("linux"):
            return int(_ps(self.pid, "rss") or 0) << 10
        total = 0
        with suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) << 10
        return total


def _started(pid: int) -> str | None:
    if not sys.platform.startswith("linux"):
        state, _, started = _ps(pid, "stat=,lstart").partition(" ")
        return started.strip() or None if not state.startswith("Z") else None
    try:
        # The name, which may hold anything, ends with the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # Anything else, as too many open files, is no sign that it has ended.
        return None
    return None if fields[0] in "ZX" else f"{boot()}:{fields[19]}"


def _ps(pid: int, wanted: str) -> str:
    asked = ["ps", "-o", f"{wanted}=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
