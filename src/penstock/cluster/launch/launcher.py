"""The interface of launchers: how the controller starts processes, and ends them."""

from typing import Protocol

from penstock.cluster.setup import Setup


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
