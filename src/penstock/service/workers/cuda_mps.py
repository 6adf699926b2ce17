"""CUDA MPS: a daemon of NVIDIA's through which the kernels of several processes run on one GPU at the same time.

Without it processes take turns (time slices). Its pipes lie in the service's folder, so that only the service's own
jobs share a server: a fatal fault of one client ends all clients of its server.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.output_files import make_private_folder

_CONTROL = "nvidia-cuda-mps-control"
_LONGEST_PATH = 80
"""Characters of the folder: sockets in it may have about a hundred."""
_PATIENCE_S = 30.0


class CudaMps:
    """A running daemon, as jobs need to know it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder),
            "CUDA_MPS_LOG_DIRECTORY": str(folder),
        }

    def runs(self) -> bool:
        """Whether a daemon answers; one that an earlier service has started is used again."""
        return self._told("get_server_list") is not None

    def start(self) -> None:
        """Start the daemon, or refuse with what it said."""
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
        """End the daemon; nothing runs on its devices any more."""
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
