"""The interface of launchers, and what an entry of one says."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.cluster.layout import Setup
from penstock.hardware.cluster import NO_FACTS, ClusterDocument, LauncherFacts


class Handle(Protocol):
    """A task that was started."""

    @property
    def pid(self) -> int | None:
        """Its process, where it is on this host and runs already."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs or waits for its machine. A signal's number is negative."""

    @property
    def trouble(self) -> str:
        """Why it does not run, as far as the launcher knows more than its status says; else empty."""

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""


class Launcher(Protocol):
    """A way to start tasks."""

    interface: str | None
    """Where the controller listens for tasks that this launcher starts; None: where the first machine's tasks do."""

    def start(self, setup: Setup) -> Handle:
        """Start a task, without waiting for it; it ends by itself when whoever started it is gone."""

    def close(self) -> None:
        """End what is left. Nothing more will be started; again is no harm."""


def _controls(cluster: ClusterDocument) -> bool:
    return True


@dataclass(frozen=True)
class LauncherEntry:
    """One launcher."""

    make: Callable[[ClusterDocument, Path], Launcher]
    """For a cluster and a run folder."""
    take_part: Callable[[ClusterDocument], bool] = _controls
    """Called before anything else of a run. False: this process was not to control it, and its part is over."""
    discover: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None
    """Completes the fields of a cluster file with the machines that it finds."""
    facts: LauncherFacts = NO_FACTS
    """What others need to know of it, who do not import it."""
