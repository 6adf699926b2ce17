"""A process for each job; through CUDA MPS their kernels run at the same time."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from penstock.service.rooms import Room
from penstock.service.sharing.way import Sharing
from penstock.service.workers.cuda_mps import mps_lacks, started_mps
from penstock.service.workers.pool import WarmPool

_FOLDER = "mps"


class Mps:
    """A fatal fault of one job ends all others on the GPU; they go on from their checkpoints."""

    name = "mps"

    def lacks(self, folder: Path, rooms: list[Room]) -> str | None:
        """It needs a GPU and NVIDIA's daemon."""
        if not any(room.kind == "cuda" for room in rooms):
            return "this machine has no GPU"
        return mps_lacks(folder / _FOLDER)

    def opened(self, stack: ExitStack, folder: Path, rooms: list[Room], pool: WarmPool) -> Sharing:
        """Forks of the warm program that find the daemon."""
        daemon = started_mps(folder / _FOLDER)
        stack.callback(daemon.close)
        return Sharing([replace(room, environment={**room.environment, **daemon.environment}) for room in rooms], pool)
