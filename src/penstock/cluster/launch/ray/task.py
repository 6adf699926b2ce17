"""A task on a Ray cluster: waits for its machine's node, runs there, and ends with it."""

import signal
import time
from collections.abc import Callable
from typing import Protocol

from penstock.cluster.launch.ray.cluster import TaskEnd
from penstock.cluster.setup import Setup

_LOST = -signal.SIGKILL
"""The status of a task whose node is gone."""
_REFUSED = 2
"""The status of a task that its machine could not start, as of one that refuses itself."""
_AGAIN = 0.25
"""Seconds between two looks for a node."""


class ActorHandle(Protocol):
    """The actor that started a task, as far as ending it is concerned."""

    def pid(self) -> int | None:
        """The task's process, once it runs."""

    def look(self) -> TaskEnd | None:
        """What became of the task, if something did."""

    def end(self) -> None:
        """End the task."""


class RayTask:
    """A handle. `place` asks Ray to keep the task on its machine's node, and says where that is; None: nowhere now."""

    def __init__(
        self, setup: Setup, place: Callable[[Setup], tuple[ActorHandle, str] | None], host: str | None
    ) -> None:
        """`host` is the address of this host."""
        self._setup, self._place, self._host = setup, place, host
        self._running = False
        self._status: int | None = None
        self._actor: ActorHandle | None = None
        self._address = self._refusal = ""
        self._try_to_place()

    @property
    def pid(self) -> int | None:
        """Its process, if it is on this host and runs already."""
        return self._actor.pid() if self._actor is not None and self._address == self._host else None

    @property
    def trouble(self) -> str:
        """Why it does not run."""
        if self._status is not None or self._running:
            return self._refusal
        machine = self._setup.task.machine
        if self._actor is None:
            return f"machine {machine} has no living Ray node, see `ray status`"
        return f"Ray has not started it on machine {machine}, see `ray status` for what is left there"

    @property
    def over(self) -> bool:
        """Whether it has ended and somebody knows."""
        return self._status is not None

    def poll(self) -> int | None:
        """The exit status, or None while the task runs or waits for a node."""
        if self._status is None:
            if self._actor is not None:
                self._look(self._actor)
            elif time.monotonic() - self._looked >= _AGAIN:
                self._try_to_place()
        return self._status

    def kill(self) -> None:
        """End it, wherever it is."""
        if self._status is None:
            # What kept it from running is still to be asked for.
            self._refusal = self.trouble
            self._status = _LOST
            if self._actor is not None:
                self._actor.end()

    def _try_to_place(self) -> None:
        self._looked = time.monotonic()
        if placed := self._place(self._setup):
            self._actor, self._address = placed

    def _look(self, actor: ActorHandle) -> None:
        self._running = self._running or actor.pid() is not None
        end = actor.look()
        if end is None:
            return
        if end.how == "refused":
            self._status, self._refusal = _REFUSED, end.why
        elif end.how == "ended":
            self._status = end.status
        elif self._running:
            self._status = _LOST
        else:
            # Its node went before it was there. It is not the task that failed: another node is looked for.
            self._actor = None
