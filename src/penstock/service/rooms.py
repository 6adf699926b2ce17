"""The resources of this machine: GPUs with their memory, the host's cores and memory."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.blocks import default_threads
from penstock.memory import available_mb
from penstock.service.folder import ServiceFolder
from penstock.service.policies import DeviceRoom
from penstock.service.workers.pool import WarmPool

_HOST_SHARE = 0.9
"""Share of the host's free memory that jobs may take; the rest is for its users and the system's caches."""
_DEVICE_SHARE = 0.98
_LOOKING_S = 120.0


@dataclass(frozen=True)
class JobDevice:
    """A device that jobs run on: a policy's view of it, and the environment of its processes."""

    device: DeviceRoom
    environment: dict[str, str]
    title: str

    @property
    def kind(self) -> str:
        """The kind of device: cpu or cuda."""
        return self.device.kind


def rooms_here(folder: ServiceFolder, pool: WarmPool, concurrent: int | None) -> list[JobDevice]:
    """The GPUs, if there are any, and the CPU. They share the host's cores and memory."""
    host, cores = int((available_mb() << 20) * _HOST_SHARE), float(default_threads())
    rooms = [
        JobDevice(
            DeviceRoom(
                name=f"cuda:{gpu['index']}",
                kind="cuda",
                bytes=int(gpu["free_bytes"] * _DEVICE_SHARE),
                host_bytes=host,
                cores=cores,
                concurrent=concurrent,
            ),
            {"CUDA_VISIBLE_DEVICES": _visible(gpu["index"])},
            str(gpu["name"]),
        )
        for gpu in _gpus(folder, pool)
    ]
    room = DeviceRoom(name="cpu", kind="cpu", host_bytes=host, cores=cores, concurrent=concurrent)
    return [*rooms, JobDevice(room, {"CUDA_VISIBLE_DEVICES": ""}, "this machine's processor")]


def _visible(index: int) -> str:
    """A GPU's number for CUDA_VISIBLE_DEVICES; the service may see only some of the machine's."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[index].strip() if given else str(index)


def _gpus(folder: ServiceFolder, pool: WarmPool) -> list[dict[str, int]]:
    """The GPUs, as found by a separate process: the service itself uses none and need not import torch."""
    if not Path("/proc/driver/nvidia").exists():
        return []
    task = {"kind": "look"}
    process = pool.start(folder.path / "jobs" / "devices", {}, task)
    process.begin(task)
    until = time.monotonic() + _LOOKING_S
    try:
        while time.monotonic() < until:
            messages, ended = process.heard()
            for message in messages:
                if "outcome" in message:
                    found: list[dict[str, int]] = message["outcome"].get("gpus", [])
                    return found
            if ended:
                break
            time.sleep(0.05)
    finally:
        process.name.kill()
        process.close()
    raise PenstockError("The GPUs of this machine cannot be used: see the service's output.", code="device-not-found")
