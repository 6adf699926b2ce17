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
        """Its process id, if it is on this host and runs already."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs or waits for its machine. A signal's number is negative."""

    @property
    def trouble(self) -> str:
        """Why it does not run, if the launcher knows more than its status says; else empty."""

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""


class Launcher(Protocol):
    """A way to start tasks."""

    interface: str | None
    """The interface on which the controller listens for tasks of this launcher; None: that of the first machine's
    tasks.
    """

    def start(self, setup: Setup) -> Handle:
        """Start a task without waiting for it; it ends by itself when its starter is gone."""

    def close(self) -> None:
        """End all remaining tasks. Nothing can be started afterwards; may be called again."""


def _controls(cluster: ClusterDocument) -> bool:
    return True


@dataclass(frozen=True)
class LauncherEntry:
    """A launcher by name: how it is made, and what it does in each process."""

    make: Callable[[ClusterDocument, Path], Launcher]
    """Makes the launcher for a cluster and a run folder."""
    take_part: Callable[[ClusterDocument], bool] = _controls
    """Called before anything else of a run. False: this process does not control the run, and its part is over."""
    discover: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None
    """Completes the fields of a cluster file with the machines that it finds."""
    facts: LauncherFacts = NO_FACTS
    """What others need to know of it, who do not import it."""
