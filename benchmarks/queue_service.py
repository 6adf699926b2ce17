"""A service as benchmarks use it: a process of its own on a folder, started, killed and started again."""

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from penstock.service.client import Queue

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
_PATIENCE_S = 120.0


class ServiceProcess:
    """`penstock serve` on a folder. Its output goes to serve.log beside it."""

    def __init__(self, folder: Path, *words: str, descriptors: int | None = None) -> None:
        """`descriptors` limits how many files and connections it may have open, where given."""
        self.folder, self._words, self._descriptors = folder, words, descriptors
        self.queue = Queue(folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder.parent / "serve.log").open("ab") as log:
            command = [*PENSTOCK, "serve", "--folder", str(self.folder), *self._words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder.parent)
        if self._descriptors is not None:
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (self._descriptors, self._descriptors))
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                self.queue.devices()
                return
            except Exception:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
        raise SystemExit(f"The service did not start: see {self.folder.parent / 'serve.log'}")

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it without warning."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it politely."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_PATIENCE_S)
