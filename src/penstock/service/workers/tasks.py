"""What a process does that has one task: train a job, forecast the memory of one, or look at the GPUs."""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.memory import HOST_PEAK, file_mb, resident_mb
from penstock.progress import Progress
from penstock.report import write_report_or_note
from penstock.service.workers.device_grant import DeviceGrant, OwnDevice, uses_gpu
from penstock.service.workers.memory_need import memory_need
from penstock.service.workers.reports import LoggedProgress, Reports, reached
from penstock.train.device_full import is_host_full
from penstock.train.job import Job, make_job
from penstock.train.run import resume_run, start_run
from penstock.train.run_folder import RunFolder
from penstock.train.trace.kernel_rates import measure_kernel_rates

_DEVICE_FAULTS = ("CUDA error", "cuBLAS", "CUBLAS", "cudnn", "device-side", "MPS")


def run_task(descriptor: int) -> int:
    """Read the task from standard input, do it, and report how it ended; the exit status."""
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
    """Do some work and say how it ended, with the memory that it took, pages of files not counted; what is to be read
    goes to `log`."""
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
    """Train a job from its beginning, or from its newest checkpoint where an earlier try has written one.

    `opened` gives the graph of a job, where others use it as well; `log` is the process's by default.
    """
    progress, run = LoggedProgress(reports, log or sys.stderr), Path(task["run"])
    job = make_job({**task["document"], "run": str(run)})
    graph = None if opened is None else opened(job)
    with device.entered(reports):
        if task["tries"] > 1 and has_checkpoint(run):
            return _ended(resume_run(run, graph, progress=progress, trust_module=task["modules"]), progress)
        # What an earlier try left without a checkpoint is replaced; a first try replaces nothing.
        return _ended(start_run(job, graph, force=task["tries"] > 1, progress=progress), progress)


def forecast(task: dict[str, Any], reports: Reports, device: DeviceGrant) -> dict[str, Any]:
    """What a job will need of its device and its host."""
    held = round((resident_mb() - file_mb()) * (1 << 20))
    return {"need": memory_need(make_job(task["document"]), task["room"], held)}


def look(task: dict[str, Any], reports: Reports, device: DeviceGrant) -> dict[str, Any]:
    """The GPUs of this machine: their names, their memory, and what of it is free; how fast they are is kept."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append({"index": index, "name": properties.name, "bytes": total, "free_bytes": free})
    # No job is there yet to be disturbed, or to disturb.
    measure_kernel_rates()
    return {"gpus": found}


TASKS: dict[str, Callable[[dict[str, Any], Reports, DeviceGrant], dict[str, Any]]] = {
    "train": train,
    "forecast": forecast,
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
    """The metric of a run that has ended: of its best model, or of its last one where no other was validated."""
    judged, result = facts.get("metric"), facts.get("result", {})
    if not judged:
        return {}
    name, best, epoch = judged["name"], result.get("best_value"), result.get("best_epoch", -1)
    val = result.get("val", {}).get(name) if best is None else best
    test = result.get("test", {}).get(name)
    return reached(name, judged["better"], val, epoch if epoch > 0 else None, test)


def _task_line() -> str:
    """The task, in one line; empty where the service ended before it told."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return ""
        line += chunk
    return line.decode()


def _end_with_the_service() -> None:
    """Standard input stays open as long as the service lives. The next service must not find two of a job."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _is_fault(error: BaseException) -> bool:
    """Whether a GPU failed, which under MPS may be another process's doing."""
    text = f"{error} {error.__cause__}"
    return uses_gpu() and any(word in text for word in _DEVICE_FAULTS)
