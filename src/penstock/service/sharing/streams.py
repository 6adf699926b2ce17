"""One process for several jobs, each in a thread of its own; on a GPU, on streams and in memory of its own."""

from contextlib import ExitStack
from pathlib import Path

from penstock.service.rooms import Room
from penstock.service.sharing.way import Sharing
from penstock.service.workers.pool import WarmPool
from penstock.service.workers.shared_pool import SharedPool


class Streams:
    """Jobs on one graph share its mapping and its copy on the GPU; a crash of one ends all, and they go on from their
    checkpoints."""

    name = "streams"

    def lacks(self, folder: Path, rooms: list[Room]) -> str | None:
        """It is there wherever threads are."""
        return None

    def opened(self, stack: ExitStack, folder: Path, rooms: list[Room], pool: WarmPool) -> Sharing:
        """A process for all jobs of a device that can be together."""
        shared = SharedPool(pool, folder / "jobs" / "shared")
        stack.callback(shared.close)
        return Sharing(rooms, shared)
