"""What a forked process does: train a job, forecast the memory of one, or look at the GPUs."""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.memory import HOST_PEAK
from penstock.progress import Progress
from penstock.report import write_report_or_note
from penstock.service.workers.memory_need import memory_need
from penstock.service.workers.reports import LoggedProgress, Reports
from penstock.train.device_full import is_host_full
from penstock.train.device_memory import assumed_memory
from penstock.train.job import make_job
from penstock.train.run import resume_run, start_run
from penstock.train.run_folder import RunFolder

_DEVICE_PAUSE_S = 1.0
_DEVICE_FAULTS = ("CUDA error", "cuBLAS", "CUBLAS", "cudnn", "device-side", "MPS")


def run_task(descriptor: int) -> int:
    """Read the task from standard input, do it, and report how it ended; the exit status."""
    line = _task_line()
    if not line:
        return 0
    reports = Reports(descriptor)
    threading.Thread(target=_end_with_the_service, name="service", daemon=True).start()
    task = json.loads(line)
    peak = HOST_PEAK.measure()
    outcome: dict[str, Any]
    try:
        outcome = {"state": "done", **TASKS[task["kind"]](task, reports)}
    except KeyboardInterrupt:
        outcome = {"state": "interrupted", "reason": "It was interrupted."}
    except PenstockError as error:
        outcome = {"state": "failed", "code": error.code, "reason": str(error), "fault": _is_fault(error)}
    except Exception as error:
        traceback.print_exc()
        sentence = f"It failed ({type(error).__name__}: {' '.join(str(error).split())[:300]}): see its log."
        code = "out-of-memory" if is_host_full(error) else "unexpected-failure"
        outcome = {"state": "failed", "code": code, "reason": sentence, "fault": _is_fault(error)}
    if outcome["state"] == "failed":
        with suppress(OSError):
            print(outcome["reason"], file=sys.stderr, flush=True)
    reports.say(outcome={**outcome, "host_bytes": round(peak.read() * (1 << 20)), **_device_peak()})
    return 0


def train(task: dict[str, Any], reports: Reports) -> dict[str, Any]:
    """Train a job from its beginning, or from its newest checkpoint where an earlier try has written one."""
    progress, run = LoggedProgress(reports), Path(task["run"])
    _limit_device(task)
    if task["device_bytes"]:
        threading.Thread(target=_report_device, args=[reports], name="device", daemon=True).start()
    # What is placed where is decided as for the forecast: by the device's memory, not by what others leave of it.
    memory = assumed_memory(task["room_bytes"], torch.cuda.memory_allocated) if task["device_bytes"] else nullcontext()
    with memory:
        if task["tries"] > 1 and has_checkpoint(run):
            return _ended(resume_run(run, progress=progress, trust_module=task["modules"]), progress)
        job = make_job({**task["document"], "run": str(run)})
        # What an earlier try left without a checkpoint is replaced; a first try replaces nothing.
        return _ended(start_run(job, force=task["tries"] > 1, progress=progress), progress)


def forecast(task: dict[str, Any], reports: Reports) -> dict[str, Any]:
    """What a job will need of its device and its host."""
    return {"need": memory_need(make_job(task["document"]), task["room"])}


def look(task: dict[str, Any], reports: Reports) -> dict[str, Any]:
    """The GPUs of this machine: their names, their memory, and what of it is free."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append({"index": index, "name": properties.name, "bytes": total, "free_bytes": free})
    return {"gpus": found}


TASKS: dict[str, Callable[[dict[str, Any], Reports], dict[str, Any]]] = {
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
    return {"state": state, "reason": str(folder.facts.get("message", ""))}


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


def _limit_device(task: dict[str, Any]) -> None:
    """Let torch reserve no more of the GPU than was granted."""
    if task["device_bytes"]:
        total = torch.cuda.get_device_properties(0).total_memory
        share = (task["device_bytes"] - task["context_bytes"]) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(share, 0.0)), 0)


def _report_device(reports: Reports) -> None:
    pause = threading.Event()
    while not pause.wait(_DEVICE_PAUSE_S):
        reports.say(**_device_peak())


def _device_peak() -> dict[str, int]:
    return {"device_bytes": torch.cuda.max_memory_reserved()} if _uses_gpu() else {}


def _is_fault(error: BaseException) -> bool:
    """Whether a GPU failed, which under MPS may be another process's doing."""
    text = f"{error} {error.__cause__}"
    return _uses_gpu() and any(word in text for word in _DEVICE_FAULTS)


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
