"""How jobs share a device: through CUDA MPS, in time slices, or as threads of one process.

`service.SHARING` lists the ways; a new way is a `SharingWay` and one line there (docs/queue.md).
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.files import make_private_folder
from penstock.service.admission import JobDevice
from penstock.service.workers.pool import SharedPool, Starter, WarmPool

# The interface of a way of sharing devices.


@dataclass(frozen=True)
class Sharing:
    """Devices, with the environment of their processes, and the starter of jobs there."""

    rooms: list[JobDevice]
    trainers: Starter


@dataclass(frozen=True)
class SharingWay:
    """A way in which several jobs use one device at once."""

    name: str
    opened: Callable[[ExitStack, Path, list[JobDevice], WarmPool], Sharing]
    """Prepares it in the service's folder; what is started for it ends with the stack."""
    lacks: Callable[[Path, list[JobDevice]], str | None] = lambda folder, rooms: None
    """What is missing here for it, as part of a sentence; None where nothing is."""


# CUDA MPS: NVIDIA's daemon through which the kernels of several processes run on one GPU at the same time. Without it
# processes take turns (time slices). Its pipes are in the service's folder, so that only the service's own jobs share a
# server: a fatal fault of one client ends all clients of its server.

_CONTROL = "nvidia-cuda-mps-control"
_LONGEST_PATH = 80
"""The longest path of the folder: those of sockets in it may have about a hundred characters."""
_PATIENCE_S = 30.0


class CudaMps:
    """A running daemon, and the environment by which jobs find it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder),
            "CUDA_MPS_LOG_DIRECTORY": str(folder),
        }

    def runs(self) -> bool:
        """Whether a daemon answers; one that an earlier service has started is reused."""
        return self._told("get_server_list") is not None

    def start(self) -> None:
        """Start the daemon; an error quotes what it printed."""
        make_private_folder(self._folder)
        done = subprocess.run(
            [_CONTROL, "-d"], env=self._all(), capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
        if done.returncode != 0 or not self.runs():
            what = " ".join((done.stdout + done.stderr).split()) or f"exit status {done.returncode}"
            raise PenstockError(
                f"CUDA MPS could not be started ({what[:300]}): use --sharing time-slices.", code="external-failure"
            )

    def close(self) -> None:
        """End the daemon; nothing may run on its devices any more."""
        self._told("quit -t 5")

    def _told(self, order: str) -> str | None:
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [_CONTROL],
                input=f"{order}\n",
                env=self._all(),
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE_S,
            )
            return done.stdout if done.returncode == 0 else None
        return None

    def _all(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


def mps_lacks(folder: Path) -> str | None:
    """What is missing for a daemon whose pipes lie in `folder`; None where nothing is."""
    if shutil.which(_CONTROL) is None:
        return f"{_CONTROL} is not installed"
    if len(str(folder)) > _LONGEST_PATH:
        return f"{folder} is too long a path for its sockets"
    return None


def started_mps(folder: Path) -> CudaMps:
    """The daemon that jobs share GPUs through, in a folder of its own."""
    daemon = CudaMps(folder)
    if not daemon.runs():
        daemon.start()
    return daemon


# A process for each job; through CUDA MPS their kernels run at the same time. A fatal fault of one job ends all others
# on the GPU; they continue from their checkpoints.

_FOLDER = "mps"


def _lacks_mps(folder: Path, rooms: list[JobDevice]) -> str | None:
    if not any(room.kind == "cuda" for room in rooms):
        return "this machine has no GPU"
    return mps_lacks(folder / _FOLDER)


def _opened_mps(stack: ExitStack, folder: Path, rooms: list[JobDevice], pool: WarmPool) -> Sharing:
    """Forks of the warm program that use the daemon."""
    daemon = started_mps(folder / _FOLDER)
    stack.callback(daemon.close)
    return Sharing([replace(room, environment={**room.environment, **daemon.environment}) for room in rooms], pool)


MPS = SharingWay("mps", _opened_mps, _lacks_mps)


# A process for each job; the driver gives the GPU to one after the other in time slices. A fault of one job affects no
# other.

TIME_SLICES = SharingWay("time-slices", lambda stack, folder, rooms, pool: Sharing(rooms, pool))


# One process for all jobs of a device that can share it, each in a thread of its own; on a GPU, on streams and in
# memory of its own. Jobs on one graph share its mapping and its copy on the GPU; a crash of one ends all, and they
# continue from their checkpoints.


def _opened_streams(stack: ExitStack, folder: Path, rooms: list[JobDevice], pool: WarmPool) -> Sharing:
    shared = SharedPool(pool, folder / "jobs" / "shared")
    stack.callback(shared.close)
    return Sharing(rooms, shared)


STREAMS = SharingWay("streams", _opened_streams)
