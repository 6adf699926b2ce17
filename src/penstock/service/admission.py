"""Devices and jobs as a policy sees them: what follows from a forecast, what runs now, and how fast beside others."""

import os
import signal
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.memory import available_mb
from penstock.processes import default_threads
from penstock.service.database import JobRecord, age_of
from penstock.service.folder import ServiceFolder
from penstock.service.policies import UNKNOWN_SHARE, DeviceRoom, JobNeeds, RunningJob, WaitingJob, never_fits
from penstock.service.workers.pool import StartedTask, WarmPool

# The resources of this machine: GPUs with their memory, the host's cores and memory.

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


# How fast jobs run beside each other, compared with how fast they ran alone.

_STEPS, _SECONDS = 5, 3.0
"""A rate is known after this many steps and seconds with the same neighbours."""


@dataclass
class SpeedMeter:
    """The rate of one job's steps since its neighbours last changed."""

    neighbours: frozenset[int] = frozenset()
    steps: int = 0
    _first_steps: int | None = None
    _first_time: float = field(default_factory=time.monotonic)
    _began: tuple[int, float] | None = None
    """The steps and the time of the first report."""

    def note(self, steps: int) -> None:
        """Record how many steps the job has done so far."""
        self.steps = steps
        self._began = self._began or (steps, time.monotonic())
        if self._first_steps is None:
            self._first_steps, self._first_time = steps, time.monotonic()

    def overall(self) -> float | None:
        """Steps per second since the first report, validations included; None until there were a few."""
        if self._began is None:
            return None
        done, took = self.steps - self._began[0], time.monotonic() - self._began[1]
        return done / took if done >= _STEPS and took >= _SECONDS else None

    def beside(self, neighbours: frozenset[int]) -> None:
        """Set the jobs that now run on its device; if they have changed, measuring starts anew."""
        if neighbours != self.neighbours:
            self.neighbours, self._first_steps = neighbours, None

    def rate(self) -> float | None:
        """Steps per second beside its current neighbours; None until it has run long enough."""
        if self._first_steps is None:
            return None
        done, took = self.steps - self._first_steps, time.monotonic() - self._first_time
        return done / took if done >= _STEPS and took >= _SECONDS else None


class Speeds:
    """Rates of jobs that run alone, kept for similar ones, and the current speeds relative to them."""

    def __init__(self) -> None:
        self._alone: dict[str, float] = {}

    def of(self, meter: SpeedMeter, likeness: str) -> float | None:
        """The job's speed relative to running alone; None where one of the two rates is not known."""
        rate = meter.rate()
        if rate is None:
            return None
        if not meter.neighbours:
            self._alone[likeness] = rate
        alone = self._alone.get(likeness)
        return None if alone is None else min(1.0, rate / alone)

    def learn(self, together: Sequence[tuple[SpeedMeter, str]]) -> None:
        """Estimate the rates alone of jobs that never ran alone, from those that share a device with them.

        Jobs on one device slow each other down alike: where all have a rate and the speed of some is known, the others
        have that speed. A rate that is measured alone replaces the estimate.
        """
        rates = [meter.rate() for meter, _ in together]
        known = [speed for speed in (self.of(*each) for each in together) if speed is not None]
        if not known or None in rates:
            return
        speed = sum(known) / len(known)
        for (_, likeness), rate in zip(together, rates, strict=True):
            if rate is not None and speed > 0:
                self._alone.setdefault(likeness, rate / speed)


# A process of the service and the job that it works for.

GRACE_S = 20.0
"""Seconds for a job to finish its step and write a checkpoint."""


@dataclass
class ActiveTask:
    """A process of the service and the job that it works for."""

    record: JobRecord
    process: StartedTask
    kind: str
    """train or forecast."""
    likeness: str = ""
    room: JobDevice | None = None
    trains: bool = False
    """Whether it has begun to train, which ends its start-up."""
    outcome: dict[str, Any] | None = None
    too_much: str | None = None
    expected_s: float | None = None
    """Seconds that were expected to be left of it when it started."""
    total: int = 0
    """The steps of the whole run, once it trains."""
    began: float = field(default_factory=time.monotonic)
    told_to_stop: float | None = None
    now_bytes: int = 0
    """Host memory that it holds now, without pages of files."""
    host_bytes: int = 0
    """The peak of its host memory."""
    device_bytes: int = 0
    """The peak of its reserved device memory, as it reports."""
    meter: SpeedMeter = field(default_factory=SpeedMeter)
    metric: dict[str, Any] = field(default_factory=dict)
    """The best validation of the job so far (`JobRecord.metric`), as its process reports."""

    @property
    def seconds(self) -> float:
        """Seconds that the job has run, earlier tries included."""
        return self.record.seconds + time.monotonic() - self.began

    @property
    def left_s(self) -> float | None:
        """Seconds that it will still take: by its steps so far, or before they tell by what was expected."""
        rate, spent = self.meter.overall(), time.monotonic() - self.began
        if rate is not None and self.total:
            return max(0.0, (self.total - self.meter.steps) / rate)
        return _left(self.expected_s, spent)

    def live(self) -> dict[str, Any]:
        """What is known of a running job beyond its record."""
        return {
            "seconds": round(self.seconds, 1),
            "metric": self.metric or self.record.metric,
            "peak_host_bytes": max(self.host_bytes, self.record.peak_host_bytes or 0),
            "peak_device_bytes": max(self.device_bytes, self.record.peak_device_bytes or 0),
        }

    def shown(self, speeds: Speeds) -> dict[str, Any]:
        """The job on its device as users see it: its grant, its use, its speed."""
        return {
            "id": self.record.id,
            "name": self.record.name,
            "granted_device_bytes": self.record.granted_device_bytes,
            "granted_host_bytes": self.record.granted_host_bytes,
            "device_bytes": self.device_bytes,
            "host_bytes": self.now_bytes,
            "peak_host_bytes": self.host_bytes,
            "cores": self.record.cores,
            "steps": self.meter.steps,
            "speed": speeds.of(self.meter, self.likeness),
            "seconds": round(time.monotonic() - self.began, 1),
        }

    def stop(self) -> None:
        """Ask the process to stop; if it does not, it is killed later."""
        if self.told_to_stop is None:
            self.told_to_stop = time.monotonic()
            self.process.name.signal(signal.SIGTERM if self.kind == "train" else signal.SIGKILL)
        elif time.monotonic() - self.told_to_stop > GRACE_S:
            self.process.name.signal(signal.SIGKILL)


# Jobs as a policy sees them, and what a forecast makes of a job.

_LEAST_LEFT = 0.1
"""The part of a job's expected seconds that is assumed to be left of one that took longer."""

FORECAST_S, _FORECAST_SHARE, _FORECAST_BYTES = 300.0, 0.25, 2 << 30
"""The limits of a forecast: seconds, and a share of the host's memory, with a minimum in bytes. It counts, and computes
nothing large; a job that needs more is run alone.
"""
_MARGIN = 1.1
"""A factor for measured peaks of host memory, which vary a little from run to run."""


def waiting_jobs(
    rows: Iterable[sqlite3.Row], rooms: Sequence[JobDevice], corrections: Mapping[str, float]
) -> list[WaitingJob]:
    """The jobs that could start. `corrections` are factors of forecast seconds, by kind of device."""
    return [
        WaitingJob(
            id=str(row["id"]),
            kind=row["kind"],
            device_bytes=row["device_bytes"] or 0,
            host_bytes=row["host_bytes"] or 0,
            cores=row["cores"],
            share=share_of(row["cores"], row["kind"], row["throughput_share"], rooms),
            predicted=row["kind"] == "cuda",
            alone=bool(row["alone"]),
            submitted=row["id"],
            priority=row["priority"],
            waited_s=age_of(row["since"]),
            expected_s=_left(_whole_s(row, corrections), row["seconds"]),
        )
        for row in rows
    ]


def _whole_s(row: sqlite3.Row, corrections: Mapping[str, float]) -> float | None:
    """The seconds that a job is expected to take alone: those of similar ones, else the forecast; None: unknown."""
    known, predicted = row["known_s"], row["predicted_s"]
    if known is not None:
        return float(known)
    return None if predicted is None else float(predicted * corrections.get(row["kind"], 1.0))


def _left(expected_s: float | None, spent_s: float) -> float | None:
    """What is left of a job's expected seconds: a tenth at least, as it has not ended."""
    return None if expected_s is None else max(expected_s - spent_s, _LEAST_LEFT * expected_s)


def running_jobs(tasks: Iterable[ActiveTask], speeds: Speeds) -> list[RunningJob]:
    """The jobs that have a process which trains."""
    tasks = list(tasks)
    sharing: dict[str, list[tuple[SpeedMeter, str]]] = {}
    for task in tasks:
        if task.room is not None:
            sharing.setdefault(task.room.device.name, []).append((task.meter, task.likeness))
    for together in sharing.values():
        speeds.learn(together)
    return [
        RunningJob(
            id=str(task.record.id),
            kind=task.record.kind,
            device_bytes=task.record.granted_device_bytes or 0,
            host_bytes=task.record.granted_host_bytes or 0,
            cores=task.record.cores,
            share=share_of(
                task.record.cores, task.record.kind, task.record.forecast.get("throughput_share"), [task.room]
            ),
            predicted=task.record.kind == "cuda",
            alone=task.record.alone,
            device=task.room.device.name,
            ran_s=time.monotonic() - task.began,
            speed=speeds.of(task.meter, task.likeness),
        )
        for task in tasks
        if task.room is not None
    ]


def start_of(record: JobRecord, room: JobDevice, modules: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes to a job that is started on a device, and its process's task; `modules`: whether its code may be run.

    A job that runs alone is granted the whole device, whatever was forecast.
    """
    device_bytes = room.device.bytes if record.alone else record.device_bytes
    granted = {
        "granted_host_bytes": room.device.host_bytes if record.alone else record.host_bytes,
        "granted_device_bytes": device_bytes if room.kind == "cuda" else None,
    }
    changes = {
        "state": "starting",
        "reason": "",
        "device": room.device.name,
        "tries": record.tries + 1,
        "started": record.started or time.time(),
        **granted,
    }
    task = {
        "kind": "train",
        "document": record.document,
        "run": record.run,
        "tries": record.tries + 1,
        "modules": modules,
        "cores": record.cores,
        "device_bytes": granted["granted_device_bytes"] or 0,
        "host_bytes": granted["granted_host_bytes"] or 0,
        "room_bytes": room.device.bytes,
        "context_bytes": int(record.forecast.get("context_bytes", 0)),
        "alone": record.alone,
    }
    return changes, task


def share_of(cores: int, kind: str, predicted: float | None, rooms: Sequence[JobDevice]) -> float | None:
    """The share of a CPU that a job's threads take, or the predicted share of a GPU's throughput.

    A prediction above half of a GPU counts as unknown: two such jobs may share it, since one of them starts, validates
    or writes while the other computes, and measured speeds decide about a third.
    """
    if kind == "cpu":
        return min(1.0, cores / rooms[0].device.cores) if rooms else None
    return predicted if predicted is not None and predicted < UNKNOWN_SHARE else None


def too_much_of_forecast(taken: int, seconds: float, host_bytes: int) -> str | None:
    """Why a forecast that holds `taken` bytes after so many seconds must be ended; None if it may continue."""
    most = max(_FORECAST_BYTES, int(_FORECAST_SHARE * host_bytes))
    if taken > most:
        return f"the forecast of its memory took {taken / 1e9:,.1f} GB itself, and {most / 1e9:,.1f} GB are allowed"
    if seconds > FORECAST_S:
        return f"the forecast of its memory had not ended after {FORECAST_S:.0f} s"
    return None


def after_forecast(
    record: JobRecord, outcome: dict[str, Any] | None, rooms: Sequence[JobDevice], too_much: str | None = None
) -> dict[str, Any]:
    """The changes to a job after its forecast, whose process reported `outcome` or was killed: by the service itself if
    `too_much` says why.
    """
    if outcome is None:
        why = "" if too_much is None else f" ({too_much})"
        return {"state": "waiting", "alone": 1, "reason": f"Its memory could not be forecast{why}: it runs alone."}
    if outcome["state"] != "done":
        return {"state": "failed", "code": outcome.get("code"), "reason": outcome["reason"]}
    return with_need(record, outcome["need"], rooms)


def need_of_alike(alike: JobRecord) -> dict[str, Any] | None:
    """A job's memory as known from a similar one; None where that one's is incomplete."""
    if alike.kind == "cuda" and "throughput_share" not in alike.forecast:
        # The record is of an earlier release.
        return None
    host, device = alike.host_bytes, alike.device_bytes
    if host is None and alike.state == "ended":
        host, device = int((alike.peak_host_bytes or 0) * _MARGIN), alike.peak_device_bytes
    found = {"host_bytes": host, "device_bytes": device, "cores": alike.cores, "forecast": alike.forecast}
    return None if host is None else found


def with_need(record: JobRecord, need: dict[str, Any], rooms: Sequence[JobDevice]) -> dict[str, Any]:
    """The changes to a job whose memory is known: it waits, or fails where no device could ever run it."""
    changes = {name: need[name] for name in ("device_bytes", "host_bytes", "forecast")}
    cores = changes["cores"] = need.get("cores") or record.document.get("threads", record.cores)
    if need["host_bytes"] is None:
        return {**changes, "state": "waiting", "alone": 1, "reason": "Its memory cannot be forecast: it runs alone."}
    wanted = JobNeeds(
        id=str(record.id),
        kind=record.kind,
        device_bytes=need["device_bytes"] or 0,
        host_bytes=need["host_bytes"],
        cores=cores,
    )
    refused = never_fits(wanted, [room.device for room in rooms])
    if refused is None:
        return {**changes, "state": "waiting", "reason": ""}
    advice = need["forecast"].get("advice") or "lower batch_size, hidden or threads, or use a larger machine."
    return {**changes, "state": "failed", "code": "out-of-memory", "reason": f"{refused} To make it fit: {advice}"}
