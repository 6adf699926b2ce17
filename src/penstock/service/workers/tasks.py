"""A process with one task: train a job, forecast the memory of one, or describe the GPUs."""

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.folder import Graph
from penstock.memory import HOST_PEAK, file_mb, resident_mb
from penstock.progress import Progress
from penstock.report import write_report_or_note
from penstock.sampling.device.streams import RunStreams, streams_of_run
from penstock.trace.allocations import PROCESS
from penstock.trace.kernel_rates import measure_kernel_rates
from penstock.train.job import Job, stored_job
from penstock.train.memory.forecast import MemoryForecast, forecast
from penstock.train.memory.process_memory import program_file_bytes
from penstock.train.run import resume_run, start_run
from penstock.train.run_context import assumed_memory, is_host_full
from penstock.train.run_files.run_folder import RunFolder

# The reports of a task's process to the service, one JSON object per line: its steps, its memory, how it ended.

_PAUSE_S = 1.0
_STATUS_S = 2.0


class Reports:
    """Sends reports to the service. Lines of several threads are not mixed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def say(self, **fields: Any) -> None:
        """Send a report; if the service is gone, the process is about to end anyway."""
        data = json.dumps(fields).encode() + b"\n"
        with self._lock, suppress(OSError):
            while data:
                data = data[os.write(self._descriptor, data) :]


class JobReports(Reports):
    """The reports of one of several jobs of a process: each line names the job."""

    def __init__(self, reports: Reports, job: int) -> None:
        self._reports, self._job = reports, job

    def say(self, **fields: Any) -> None:
        """Send a report that names the job."""
        self._reports.say(job=self._job, **fields)


def reached(
    metric: str, better: str, val: float | None, epoch: int | None, test: float | None = None
) -> dict[str, Any]:
    """A job's metric so far (`JobRecord.metric`), without NaN and infinities, which JSON cannot hold."""
    values = {"val": val, "epoch": epoch, "test": test}
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return {"name": metric, "better": better, **known}


class LoggedProgress(Progress):
    """Progress as lines of the job's log, with steps counted for the service. A full disk does not end the job."""

    def __init__(self, reports: Reports, log: TextIO) -> None:
        super().__init__()
        self._reports, self._steps, self._said, self._told = reports, 0, -_STATUS_S, 0.0
        self._best: tuple[float, int] | None = None
        self._file = log
        self._training = False

    def start(self, what: str, total: int, unit: str) -> None:
        if what == "training":
            self._training = True
            self._reports.say(running=True, total=total)
        self._log(f"{what} ({counted(total, unit)})" if total and unit else what)

    def advance(self, amount: int) -> None:
        if self._training:
            self._steps += amount
            now = time.monotonic()
            if now - self._told >= _PAUSE_S:
                self._told = now
                self._reports.say(steps=self._steps)

    def validated(self, metric: str, better: str, best: float, epoch: int) -> None:
        if (best, epoch) != self._best:
            self._best = best, epoch
            self._reports.say(metric=reached(metric, better, best, epoch))

    def finish(self) -> None:
        self._training = False

    def status(self, line: str) -> None:
        if time.monotonic() - self._said >= _STATUS_S:
            self._said = time.monotonic()
            self._log(line)

    def note(self, sentence: str) -> None:
        self._log(sentence)

    def _log(self, line: str) -> None:
        with suppress(OSError):
            print(f"{time.strftime('%H:%M:%S')} {line}", file=self._file, flush=True)


# The part of a GPU that a job was granted: of a process of its own, or of one that it shares with other jobs.

_GPU = torch.device("cuda", 0)
"""The only GPU that a job's process sees."""


class DeviceGrant(Protocol):
    """A job's limit of GPU memory."""

    def entered(self, reports: Reports) -> AbstractContextManager[None]:
        """A context in which, in this thread, the job trains within its grant."""

    def peak_bytes(self) -> int | None:
        """The most that it has reserved so far; None where it has used no GPU."""


class OwnDevice:
    """The `DeviceGrant` of a process that does one task: torch itself refuses to reserve more GPU memory than was
    granted.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task

    @contextmanager
    def entered(self, reports: Reports) -> Iterator[None]:
        if not self._task["device_bytes"]:
            yield
            return
        limit_process(granted_bytes(self._task))
        # Placement is decided as for the forecast: by the device's total memory, not by what others leave of it.
        with assumed_memory(self._task["room_bytes"], torch.cuda.memory_allocated), reporting(self, reports):
            yield

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved() if uses_gpu() else None


class SharedDevice:
    """The `DeviceGrant` of a job in a shared process: the GPU memory reserved for the streams of the job.

    torch knows one limit for a process, which is what all its jobs were granted together. A job that takes more than
    its part is noticed within a second, and `too_much` is called.
    """

    def __init__(self, task: dict[str, Any], limit: "ProcessLimit", too_much: Callable[[], None]) -> None:
        self._task, self._limit, self._too_much = task, limit, too_much
        self._streams: RunStreams | None = None
        self._peak = 0
        self.exceeded = ""
        """A sentence on how much it exceeded its grant; empty where it did not."""

    @contextmanager
    def entered(self, reports: Reports) -> Iterator[None]:
        if not self._task["device_bytes"]:
            yield
            return
        with streams_of_run(_GPU) as self._streams, self._limit.raised(granted_bytes(self._task), self._streams):
            with assumed_memory(self._task["room_bytes"], self._streams.reserved_bytes), reporting(self, reports):
                yield
            self.peak_bytes()

    def peak_bytes(self) -> int | None:
        if self._streams is None:
            return None
        now, granted = self._streams.reserved_bytes(), granted_bytes(self._task)
        self._peak = max(self._peak, now)
        if now > granted and not self.exceeded:
            self.exceeded = (
                f"It reserved {now / 1e6:,.0f} MB of the device, and {granted / 1e6:,.0f} MB were forecast and granted."
            )
            self._too_much()
        return self._peak


class ProcessLimit:
    """What the jobs of a process may reserve together: the sum of their grants, plus what belongs to no job.

    Jobs that have ended leave workspaces of matrix libraries behind, which torch keeps for each stream, and shared
    copies of graphs belong to no job. A limit without them would leave the next job too little.
    """

    def __init__(self) -> None:
        self._lock, self._granted = threading.Lock(), dict[RunStreams, int]()

    @contextmanager
    def raised(self, granted: int, streams: RunStreams) -> Iterator[None]:
        """Within the context the process may reserve so much more, for a job on these streams."""
        with self._lock:
            if not self._granted:
                give_back_unused()
            self._granted[streams] = granted
            self._limit()
        try:
            yield
        finally:
            with self._lock:
                del self._granted[streams]
                self._limit()

    def _limit(self) -> None:
        if not self._granted:
            limit_process(torch.cuda.get_device_properties(_GPU).total_memory)
            return
        of_jobs = sum(streams.reserved_bytes() for streams in self._granted)
        limit_process(sum(self._granted.values()) + max(0, reserved_by_process() - of_jobs))


@contextmanager
def reporting(grant: DeviceGrant, reports: Reports) -> Iterator[None]:
    """Within the context the reserved GPU memory is reported every second."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(_PAUSE_S):
            reports.say(device_bytes=grant.peak_bytes() or 0)

    thread = threading.Thread(target=report, name="device", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def granted_bytes(task: dict[str, Any]) -> int:
    """What torch may reserve for a job: its grant without the CUDA context."""
    return max(0, int(task["device_bytes"]) - int(task["context_bytes"]))


def limit_process(most: int) -> None:
    """Limit what torch may reserve of the GPU in this process."""
    total = torch.cuda.get_device_properties(_GPU).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), _GPU)


def reserved_by_process() -> int:
    """Bytes that torch has reserved of the GPU in this process."""
    return torch.cuda.memory_reserved(_GPU)


def give_back_unused() -> None:
    """Release cached memory and library workspaces to the GPU; only while no job computes."""
    libraries: Any = torch._C
    libraries._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def uses_gpu() -> bool:
    """Whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


_DEVICE_FAULTS = ("CUDA error", "cuBLAS", "CUBLAS", "cudnn", "device-side", "MPS")


def run_task(descriptor: int) -> int:
    """Read the task from standard input, do it, and report how it ended; returns the exit status."""
    line = _task_line()
    if not line:
        return 0
    reports = Reports(descriptor)
    threading.Thread(target=_end_with_the_service, name="service", daemon=True).start()
    task = json.loads(line)
    device = OwnDevice(task)
    reports.say(outcome=outcome_of(lambda: TASKS[task["kind"]](task, reports, device), device, sys.stderr))
    return 0


def outcome_of(work: Callable[[], dict[str, Any]], device: DeviceGrant, log: TextIO) -> dict[str, Any]:
    """Do some work and describe how it ended, with the memory that it took without pages of files; messages go to
    `log`.
    """
    peak = HOST_PEAK.measure()
    outcome: dict[str, Any]
    try:
        outcome = {"state": "done", **work()}
    except KeyboardInterrupt:
        outcome = {"state": "interrupted", "reason": "It was interrupted."}
    except PenstockError as error:
        outcome = {"state": "failed", "code": error.code, "reason": str(error), "fault": _is_fault(error)}
    except Exception as error:
        traceback.print_exc(file=log)
        sentence = f"It failed ({type(error).__name__}: {' '.join(str(error).split())[:300]}): see its log."
        code = "out-of-memory" if is_host_full(error) else "unexpected-failure"
        outcome = {"state": "failed", "code": code, "reason": sentence, "fault": _is_fault(error)}
    if outcome["state"] == "failed":
        with suppress(OSError):
            print(outcome["reason"], file=log, flush=True)
    taken = device.peak_bytes()
    held = max(0.0, peak.read() - file_mb())
    memory = {"host_bytes": round(held * (1 << 20)), **({} if taken is None else {"device_bytes": taken})}
    return {**outcome, **memory}


def train(
    task: dict[str, Any],
    reports: Reports,
    device: DeviceGrant,
    log: TextIO | None = None,
    opened: Callable[[Job], Graph] | None = None,
) -> dict[str, Any]:
    """Train a job from its beginning, or from its newest checkpoint if an earlier try has written one.

    `opened` gives the graph of a job, if others use it as well; `log` is the process's by default.
    """
    progress, run = LoggedProgress(reports, log or sys.stderr), Path(task["run"])
    job = stored_job(task["document"], "The job", {"run": str(run)})
    graph = None if opened is None else opened(job)
    with device.entered(reports):
        if task["tries"] > 1 and has_checkpoint(run):
            return _ended(resume_run(run, graph, progress=progress, trust_module=task["modules"]), progress)
        # What an earlier try left without a checkpoint is replaced; a first try replaces nothing.
        return _ended(start_run(job, graph, force=task["tries"] > 1, progress=progress), progress)


def forecast_need(task: dict[str, Any], reports: Reports, device: DeviceGrant) -> dict[str, Any]:
    """Forecast what a job needs of its device and its host."""
    held = round((resident_mb() - file_mb()) * (1 << 20))
    return {"need": memory_need(stored_job(task["document"], "The job"), task["room"], held)}


def look(task: dict[str, Any], reports: Reports, device: DeviceGrant) -> dict[str, Any]:
    """Describe the GPUs of this machine: their names, their total and free memory; their rates are
    measured and kept.
    """
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append({"index": index, "name": properties.name, "bytes": total, "free_bytes": free})
    # No job runs yet that could be disturbed, or disturb the measurement.
    measure_kernel_rates()
    return {"gpus": found}


TASKS: dict[str, Callable[[dict[str, Any], Reports, DeviceGrant], dict[str, Any]]] = {
    "train": train,
    "forecast": forecast_need,
    "look": look,
}


def has_checkpoint(run: Path) -> bool:
    """Whether a run can be resumed."""
    return (run / "run.json").exists() and any((run / "checkpoints").glob("step-*.ckpt"))


def _ended(folder: RunFolder, progress: Progress) -> dict[str, Any]:
    write_report_or_note(folder.path, str(folder.facts["state"]), progress)
    state = "interrupted" if folder.facts["state"] == "interrupted" else "done"
    return {"state": state, "reason": str(folder.facts.get("message", "")), "metric": _reached(folder.facts)}


def _reached(facts: dict[str, Any]) -> dict[str, Any]:
    """The metric of a run that has ended: of its best model, or of its last one if none was validated."""
    judged, result = facts.get("metric"), facts.get("result", {})
    if not judged:
        return {}
    name, best, epoch = judged["name"], result.get("best_value"), result.get("best_epoch", -1)
    val = result.get("val", {}).get(name) if best is None else best
    test = result.get("test", {}).get(name)
    return reached(name, judged["better"], val, epoch if epoch > 0 else None, test)


def _task_line() -> str:
    """The task's line; empty if the service ended before it sent one."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return ""
        line += chunk
    return line.decode()


def _end_with_the_service() -> None:
    """End when standard input closes, which it does with the service: the next service must not find a job running
    twice.
    """
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _is_fault(error: BaseException) -> bool:
    """Whether a GPU failed, which under MPS may be caused by another process."""
    text = f"{error} {error.__cause__}"
    return uses_gpu() and any(word in text for word in _DEVICE_FAULTS)


# The memory that a job will need, before it starts.

_MARGIN, _MARGIN_BYTES = 0.02, 32 << 20
"""What is granted beyond the forecast: forecasts may be off by a percent, and a process's memory varies a little."""

_MOST = 1 << 62
"""An upper bound in bytes: more than any machine has, and no more than the database can hold."""

_HOST_MARGIN = 0.4
"""The margin for host memory beyond the process itself, which is forecast less exactly: freed memory of one thread is
not reused by another, and some jobs on whole graphs took a third more than was traced.
"""


def memory_need(job: Job, room: dict[str, int], held: int) -> dict[str, Any]:
    """Bytes to be granted on the device, None on a CPU, and on the host; and the details of the forecast.

    `room` has the memory of the device, 0 where it is not known. `held` are the bytes of a process before it begins, as
    a fork of the warm program, without pages of files.
    """
    found = _without_program_files(forecast(job, device=job.device, device_memory=room["bytes"] or None), held)
    on_device = found.on_gpu
    # The process itself is measured, and needs no margin.
    process = found.host_categories[PROCESS]
    return {
        "device_bytes": with_margin(found.device_bytes) if on_device else None,
        "host_bytes": min(_MOST, process + with_margin(found.host - process, _HOST_MARGIN)),
        "cores": found.cores,
        "forecast": _told(found),
    }


def with_margin(bytes_needed: int, margin: float = _MARGIN) -> int:
    """The grant for a forecast."""
    return min(_MOST, int(bytes_needed * (1 + margin)) + _MARGIN_BYTES)


def _without_program_files(found: MemoryForecast, held: int) -> MemoryForecast:
    """The forecast without pages of programs and libraries: all jobs are forks of one process and share them. The
    service does not count them either when it checks a job's memory.
    """
    less = {PROCESS: max(held, found.host_categories[PROCESS] - program_file_bytes())}
    host = found.host - found.host_categories[PROCESS] + less[PROCESS]
    categories = found.categories | less if PROCESS in found.categories else found.categories
    return replace(found, host=host, host_categories=found.host_categories | less, categories=categories)


def _told(found: MemoryForecast) -> dict[str, Any]:
    return {
        "method": found.method,
        "reason": found.reason,
        "moment": found.moment,
        "seconds": found.seconds,
        "context_bytes": found.context,
        "device_allocated_bytes": found.device_allocated,
        "device_reserved_bytes": found.device_reserved,
        "host_bytes": found.host,
        "categories": found.categories,
        "throughput_share": found.share,
        "run": None if isinstance(found.run, str) else found.run.fields(),
    }
