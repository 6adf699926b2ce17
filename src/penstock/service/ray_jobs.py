"""Jobs of the queue on a Ray cluster: each is an actor that requests cores, memory and a GPU from Ray, which places it.

All machines must see the service's folder and the graphs under the same paths.
"""

import json
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cluster.launch.ray_cluster import RayCluster, imported_ray, join
from penstock.errors import PenstockError
from penstock.hardware.cluster import RayOptions
from penstock.service.admission import JobDevice
from penstock.service.policies import DeviceRoom, RunningJob, Start, WaitingJob
from penstock.service.workers.cold import cold_process

_PAUSE_S = 0.5
_AHEAD = 64
"""Jobs that are handed to Ray at a time: the others stay in the queue, where priorities apply and
cancelling is cheap.
"""


class HandOver:
    """The policy where Ray decides: the next jobs are handed over, whatever room there is."""

    name = "ray"
    barriers = False

    def __init__(self, age_s: float = 0.0) -> None: ...

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """The first jobs by priority and order of submission."""
        rooms = {device.kind: device.name for device in devices}
        first = sorted(waiting, key=lambda job: (-job.priority, job.submitted))[: max(0, _AHEAD - len(running))]
        return [Start(job.id, rooms[job.kind]) for job in first]


class RayJobs:
    """A connection to a Ray cluster, through which jobs are started."""

    def __init__(self, address: str) -> None:
        self._cluster: RayCluster = join(RayOptions(address=address))

    def rooms(self) -> list[JobDevice]:
        """The capacity of the largest node, by kind: jobs that need more never run."""
        nodes = self._cluster.nodes()
        if not nodes:
            raise PenstockError("No node of the Ray cluster is alive: start one.", code="peer-lost")
        kinds = ["cuda", "cpu"] if any(node.gpus for node in nodes) else ["cpu"]
        rooms = []
        for kind in kinds:
            able = [node for node in nodes if kind == "cpu" or node.gpus]
            device = DeviceRoom(
                name=f"ray-{kind}",
                kind=kind,
                bytes=1 << 62 if kind == "cuda" else 0,
                host_bytes=int(max(node.memory for node in able)),
                cores=max(node.cores for node in able),
            )
            rooms.append(JobDevice(device, {}, f"{len(able)} nodes of a Ray cluster"))
        return rooms

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> "RayJob":
        """A job that is handed over when it is given its task."""
        folder.mkdir(mode=0o700, exist_ok=True)
        return RayJob(folder, environment)

    def close(self) -> None:
        """Leave the cluster, which ends the jobs that still run."""
        self._cluster.close()


@dataclass
class RayProcess:
    """Represents a process that runs on another machine, or waits for one. It has no local process id."""

    actor: Any = None
    is_alive: bool = True
    held_bytes: int = 0
    pid: int | None = None
    started: str | None = None

    def signal(self, number: int) -> None:
        if self.actor is None or not self.is_alive:
            return
        if number == signal.SIGKILL:
            self.kill()
        else:
            self.actor.stop.remote()

    def kill(self) -> bool:
        """End the process with its actor."""
        with suppress(ValueError, imported_ray().exceptions.RayError):
            if self.actor is not None:
                imported_ray().kill(self.actor)
        return True

    def resident_bytes(self) -> int:
        """The memory that it held at its last report."""
        return self.held_bytes


class RayJob:
    """A job on the cluster, with the interface of `TaskProcess`."""

    ended_with_others = False

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.name = RayProcess()
        self._folder, self._environment = folder, environment
        self._heard_read, self._heard_write = os.pipe()
        for descriptor in (self._heard_read, self._heard_write):
            os.set_blocking(descriptor, False)
        self._lock, self._messages, self._closed = threading.Lock(), list[dict[str, Any]](), threading.Event()

    def fileno(self) -> int:
        """The descriptor that is readable when the job has reported something."""
        return self._heard_read

    def begin(self, task: dict[str, Any]) -> None:
        """Hand the job over, with the resources that it needs."""
        actor = (
            imported_ray()
            .remote(JobActor)
            .options(
                num_cpus=task["cores"],
                num_gpus=1 if task["document"]["device"] == "cuda" else 0,
                memory=task["host_bytes"] or None,
                max_restarts=0,
                max_concurrency=4,
            )
        )
        self.name.actor = actor.remote(str(self._folder), self._environment, json.dumps(task))
        threading.Thread(target=self._listen, name="ray-job", daemon=True).start()

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
        with suppress(BlockingIOError):
            os.read(self._heard_read, 1 << 10)
        with self._lock:
            messages, self._messages = self._messages, []
            return messages, not self.name.is_alive

    def close(self) -> None:
        """Drop the job; its actor ends when nothing refers to it."""
        self._closed.set()
        self.name.actor = None
        with self._lock:
            os.close(self._heard_read)
            os.close(self._heard_write)

    def _listen(self) -> None:
        """Poll the actor. It answers once Ray has placed it, and no longer when it is lost."""
        ray, actor, ended = imported_ray(), self.name.actor, False
        while not ended and not self._closed.wait(_PAUSE_S):
            try:
                messages, ended, held = ray.get(actor.heard.remote())
            except ray.exceptions.RayError:
                messages, ended, held = [], True, 0
            with self._lock:
                if self._closed.is_set():
                    return
                self._messages += messages
                self.name.held_bytes, self.name.is_alive = held, not ended
                with suppress(BlockingIOError):
                    os.write(self._heard_write, b".")


class JobActor:
    """Lives on a node as long as its job. If it is killed, the standard input of its process closes, and that ends."""

    def __init__(self, folder: str, environment: dict[str, str], task: str) -> None:
        if not Path(folder).is_dir():
            sentence = f"This node cannot see {folder}: keep the queue in a folder that all machines share."
            self._refusal = {"state": "failed", "code": "file-not-found", "reason": sentence, "host_bytes": 0}
            self._process = None
            return
        self._process = cold_process(Path(folder), environment)
        self._process.begin(json.loads(task))

    def heard(self) -> tuple[list[dict[str, Any]], bool, int]:
        """The process's reports, whether it has ended, and the memory it holds."""
        if self._process is None:
            return [{"outcome": self._refusal}], True, 0
        messages, ended = self._process.heard()
        return messages, ended, self._process.name.resident_bytes()

    def stop(self) -> None:
        """Let the process finish its step and write a checkpoint."""
        if self._process is not None:
            self._process.name.signal(signal.SIGTERM)
