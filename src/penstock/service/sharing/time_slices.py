"""A process for each job; the driver lets one after the other have the GPU for a moment."""

from contextlib import ExitStack
from pathlib import Path

from penstock.service.rooms import Room
from penstock.service.sharing.way import Sharing
from penstock.service.workers.pool import WarmPool


class TimeSlices:
    """Nothing has to be prepared, and a fault of one job is its own."""

    name = "time-slices"

    def lacks(self, folder: Path, rooms: list[Room]) -> str | None:
        """It is there wherever processes are."""
        return None

    def opened(self, stack: ExitStack, folder: Path, rooms: list[Room], pool: WarmPool) -> Sharing:
        """Forks of the warm program, as they are."""
        return Sharing(rooms, pool)
