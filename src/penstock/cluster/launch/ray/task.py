"""A task on a Ray cluster: waits for its machine's node, is kept there, and ends or is lost with it."""

import signal
import time
from collections.abc import Callable
from typing import Protocol

from penstock.cluster.launch.ray.cluster import End
from penstock.cluster.setup import Setup
from penstock.errors import PenstockError

_LOST = -signal.SIGKILL
"""The status of a task whose node is gone."""
_PATIENT = 0.9
"""Of the run's patience: what this task waits for a node is over before the controller counts it as silent."""
_AGAIN = 0.25
"""Seconds between two looks for a node."""


class Kept(Protocol):
    """A keeper."""

    def pid(self) -> int | None:
        """The task's process, once it runs."""

    def look(self) -> End | None:
        """What became of the task, if something did."""

    def end(self) -> None:
        """End it."""


class RayTask:
    """A handle. `place` asks Ray to keep the task on its machine's node, and says where that is; None: nowhere now."""

    def __init__(self, setup: Setup, place: Callable[[Setup], tuple[Kept, str] | None], host: str | None) -> None:
        """`host`: this host's address."""
        self._setup, self._place, self._host = setup, place, host
        self._since = self._looked = time.monotonic()
        self._running = False
        self._status: int | None = None
        self._keeper: Kept | None = None
        self._address = ""
        self._try_to_place()

    @property
    def pid(self) -> int | None:
        """Its process, if it is on this host and runs already."""
        return self._keeper.pid() if self._keeper is not None and self._address == self._host else None

    @property
    def over(self) -> bool:
        """Whether it has ended and somebody knows."""
        return self._status is not None

    def poll(self) -> int | None:
        """Its exit status; None while it runs, or waits for a node."""
        if self._status is None:
            if self._keeper is not None:
                self._look(self._keeper)
            elif time.monotonic() - self._looked >= _AGAIN:
                self._try_to_place()
            self._stay_patient()
        return self._status

    def kill(self) -> None:
        """End it, wherever it is."""
        if self._status is None:
            self._status = _LOST
            if self._keeper is not None:
                self._keeper.end()

    def _try_to_place(self) -> None:
        self._looked = time.monotonic()
        if placed := self._place(self._setup):
            self._keeper, self._address = placed

    def _look(self, keeper: Kept) -> None:
        self._running = self._running or keeper.pid() is not None
        end = keeper.look()
        if end is None:
            return
        if end.how == "refused":
            self._give_up(end.why)
        elif end.how == "ended":
            self._status = end.status
        elif self._running:
            self._status = _LOST
        else:
            # Its node went before it was there. It is not the task that failed: another node is looked for.
            self._keeper = None

    def _stay_patient(self) -> None:
        patience = self._setup.cluster.failure.patience
        if self._running or self._status is not None or time.monotonic() - self._since < patience * _PATIENT:
            return
        task = self._setup.task
        if self._keeper is None:
            what = f"machine {task.machine} has no living Ray node"
        else:
            what = f"Ray found no room for it on machine {task.machine}"
        self._give_up(
            f"Task {task.id} could not be started for {patience:g} s, as {what}: see `ray status`, then go on with"
            f" `penstock train --resume {self._setup.run}`."
        )

    def _give_up(self, sentence: str) -> None:
        # Whoever asks again, while the run is being ended, hears that it is not there.
        self.kill()
        raise PenstockError(sentence)
