"""A task of a run on the whole graph that kills itself (SIGKILL) in a phase of a step, for `whole_graph_kills.py`.

The variable `PENSTOCK_KILL` holds the worker's rank, the epoch, the phase and a file. The file is made right before the
kill, so that the task that takes its place lives on. Everything else of the task is as it is.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cluster.tasks.__main__ import main
from penstock.train.run_files import checkpoints
from penstock.train.whole.shared.passes import BackwardPass, ForwardPass
from penstock.train.whole.shared.state import StepState
from penstock.train.whole.shared.steps import ExchangedStep

VARIABLE = "PENSTOCK_KILL"
_LOOK = 0.001
"""Seconds between two looks at a file."""


class Victim:
    """Where the task stands, and where it dies."""

    def __init__(self, rank: int, epoch: int, phase: str, file: str) -> None:
        self._at, self._file = (rank, epoch, phase), Path(file)
        self.rank, self.epoch, self.calls = -1, -1, 0

    def reached(self, phase: str, calls: int = 1) -> None:
        """Die where this is the place, the second time for `calls` of 2, and nobody has died before."""
        if (self.rank, self.epoch, phase) != self._at:
            return
        self.calls += 1
        if self.calls == calls:
            self._die()

    def _die(self) -> None:
        if not self._file.exists():
            self._file.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Look at every phase of the steps that follow."""
        _before(ExchangedStep, "exchanged", self._begin)
        _after(ForwardPass, "_compute", lambda found: self.reached("forward", 2))
        _after(StepState, "receive_rows", lambda found: self.reached("exchange") if found else None)
        _after(BackwardPass, "_compute", lambda found: self.reached("backward", 2))
        _after(checkpoints, "pack_state", lambda found: self._writing())

    def _begin(self, steps: Any, planned: Any, step: Any) -> None:
        self.rank, self.epoch, self.calls = steps.workers.rank, planned.key.epoch, 0
        if self._at[2] in ("sum", "summed") and not hasattr(steps, "_real_sum"):
            steps._real_sum = steps.workers.reduce_and_step
            steps.workers.reduce_and_step = self._summing(steps._real_sum)
        if self._at == (self.rank, self.epoch, "checkpoint") and self.rank:
            # Only the first worker writes checkpoints.
            threading.Thread(target=self._die_while_written, daemon=True).start()

    def _summing(self, real: Callable[..., float]) -> Callable[..., float]:
        def summing(*given: Any) -> float:
            self.reached("sum")
            total = real(*given)
            self.reached("summed")
            return total

        return summing

    def _writing(self) -> None:
        """The first worker has written a checkpoint that has no name yet: it dies, or waits until the other one has."""
        rank, epoch, phase = self._at
        self.reached("checkpoint")
        if (self.rank, phase, self.epoch) == (0, "checkpoint", epoch) and rank:
            self._file.with_suffix(".writing").touch()
            while not self._file.exists():
                time.sleep(_LOOK)

    def _die_while_written(self) -> None:
        while not self._file.with_suffix(".writing").exists():
            time.sleep(_LOOK)
        self._die()


def _before(owner: Any, name: str, call: Callable[..., None]) -> None:
    real = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        call(*given, **named)
        return real(*given, **named)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, call: Callable[[Any], None]) -> None:
    real = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        call(found)
        return found

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    Victim(**json.loads(os.environ[VARIABLE])).watch()
    status = main()
    sys.stderr.flush()
    # Threads of libraries may still wait for peers that are gone.
    os._exit(status)
