"""What a task's process tells the service, a JSON object in a line: its steps, its memory, how it ended."""

import json
import math
import os
import threading
import time
from contextlib import suppress
from typing import Any, TextIO

from penstock.progress import Progress
from penstock.quantities import counted

_PAUSE_S = 1.0
_STATUS_S = 2.0


class Reports:
    """The service's ear. Lines of several threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def say(self, **fields: Any) -> None:
        """Tell the service; where it is gone, the process is about to end anyway."""
        data = json.dumps(fields).encode() + b"\n"
        with self._lock, suppress(OSError):
            while data:
                data = data[os.write(self._descriptor, data) :]


class JobReports(Reports):
    """What one of several jobs of a process tells: each line names the job."""

    def __init__(self, reports: Reports, job: int) -> None:
        self._reports, self._job = reports, job

    def say(self, **fields: Any) -> None:
        """Tell the service."""
        self._reports.say(job=self._job, **fields)


def reached(
    metric: str, better: str, val: float | None, epoch: int | None, test: float | None = None
) -> dict[str, Any]:
    """What a job has reached (`JobRecord.metric`): values that are no numbers, which JSON cannot hold, are left out."""
    values = {"val": val, "epoch": epoch, "test": test}
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return {"name": metric, "better": better, **known}


class LoggedProgress(Progress):
    """Progress as lines of the job's log, with steps counted for the service. A full disk does not end the job."""

    def __init__(self, reports: Reports, log: TextIO) -> None:
        super().__init__()
        self._reports, self._steps, self._said, self._told = reports, 0, -_STATUS_S, 0.0
        self._best: tuple[float, int] | None = None
        self._file = log
        self._training = False

    def start(self, what: str, total: int, unit: str) -> None:
        if what == "training":
            self._training = True
            self._reports.say(running=True)
        self._log(f"{what} ({counted(total, unit)})" if total and unit else what)

    def advance(self, amount: int) -> None:
        if self._training:
            self._steps += amount
            now = time.monotonic()
            if now - self._told >= _PAUSE_S:
                self._told = now
                self._reports.say(steps=self._steps)

    def validated(self, metric: str, better: str, best: float, epoch: int) -> None:
        if (best, epoch) != self._best:
            self._best = best, epoch
            self._reports.say(metric=reached(metric, better, best, epoch))

    def finish(self) -> None:
        self._training = False

    def status(self, line: str) -> None:
        if time.monotonic() - self._said >= _STATUS_S:
            self._said = time.monotonic()
            self._log(line)

    def note(self, sentence: str) -> None:
        self._log(sentence)

    def _log(self, line: str) -> None:
        with suppress(OSError):
            print(f"{time.strftime('%H:%M:%S')} {line}", file=self._file, flush=True)
