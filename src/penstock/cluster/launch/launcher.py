"""Starting processes, wherever: what the controller knows of it."""

from typing import Protocol

from penstock.cluster.setup import Setup


class Handle(Protocol):
    """A task that was started."""

    @property
    def pid(self) -> int | None:
        """Its process, where it is on this host."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs. A signal that ended it is a negative number."""

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""


class Launcher(Protocol):
    """A way to start tasks."""

    def start(self, setup: Setup) -> Handle:
        """Start a task; it ends by itself when whoever started it is gone."""

    def close(self) -> None:
        """Nothing more will be started."""
