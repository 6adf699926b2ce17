"""What the scheduler needs of those who start processes for it, on this machine or elsewhere."""

from pathlib import Path
from typing import Any, Protocol


class StartedProcess(Protocol):
    """A process as the system knows it, or what stands for one on another machine."""

    @property
    def pid(self) -> int | None:
        """Its number; with `started` it is one process for good. None where it is on another machine."""

    @property
    def started(self) -> str | None:
        """When it started, as the system says it."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, or waits to."""

    def signal(self, number: int) -> None:
        """Ask it to stop (SIGTERM), or end it (SIGKILL)."""

    def kill(self) -> bool:
        """End it at once; whether it is gone."""

    def resident_bytes(self) -> int:
        """Memory that it alone holds."""


class StartedTask(Protocol):
    """A process that waits for its task, and then does it."""

    @property
    def name(self) -> StartedProcess:
        """The process itself."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to hear."""

    def begin(self, task: dict[str, Any]) -> None:
        """Tell it what to do."""

    @property
    def ended_with_others(self) -> bool:
        """Whether its process ended by itself while it trained other jobs, too: nobody can tell whose fault it was."""

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
        """What it has reported since it was last asked, and whether it has ended."""

    def close(self) -> None:
        """Forget it."""


class Starter(Protocol):
    """Starts processes that wait for tasks."""

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> StartedTask:
        """A process for a task in `folder`, which gets its log; the task begins when it is told so."""
