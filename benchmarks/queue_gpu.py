"""The experiment of the CoGNN paper with real jobs on a real device: five queues of 20 jobs, run in every way.

Methods: `cold`, one new process after the other (the source's Default; its jobs are also the runs alone that accuracy
and weights are compared with); `warm`, one job after the other in warm processes (PipeSwitch's way); `mps-2`, `mps-4`
and `mps-8`, so many new processes at once under CUDA MPS without looking at memory; `base`, `lmcf`, `bmc` and `fit`,
the policies of the queue; `fit-2`, `fit-4` and `fit-8`, so many jobs at once by `--concurrent`; `streams`, `fit` with
all jobs in one process; `slices`, `fit` with time slices. On a CPU the methods `mps-N` are N processes.

All jobs of a queue arrive at once. Times count from there; the start of the service is given apart. Results are written
after every queue, so that a call that is cut short loses one queue at most, and calls can be put together: run one
slice after the other with the same --out, or give several files to --merge. On a device that is lent for minutes:

    python benchmarks/queue_gpu.py --device cuda --queues gcn --orders 0 --methods cold fit --epochs 2000 \\
        --seconds 500 --out queue.json
    python benchmarks/queue_gpu.py --device cuda --queues gcn --orders 0 --methods warm mps-2 mps-4 mps-8 base lmcf \\
        bmc streams slices --epochs 2000 --seconds 500 --out queue.json
    python benchmarks/queue_gpu.py --merge queue.json other.json --table

`cold` goes first: it is what others are compared with. Choose --epochs so that a job takes 60 s alone, if there is time
for it; --scale makes graphs smaller. --memory-gb 26 leaves so much of the GPU to the queue: a process keeps the rest.
Graphs are made once, in --data; make them before the device is lent (--make). Everything can be tried on a processor:
--device cpu --scale 0.002 --epochs 2 --jobs 3.

The source's sampling ratios (SAGE 0.5, GAT 0.6) are parts of the edges that are drawn once, when a graph is made.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from device_use import DeviceUse
from penstock.service.sharing import mps_lacks, started_mps
from products_graph import show
from queue_gpu_jobs import QUEUES, QueuedJob, jobs_of, outcome_of
from queue_gpu_table import cdf_of, key_of, read_results, rows_of, write_results
from queue_service import PENSTOCK, ServiceProcess

Ended = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One queue in one order, to be run in one way."""

    folder: Path
    device: str
    jobs: list[tuple[QueuedJob, dict[str, Any]]]
    data: Path


def main() -> None:
    args = _arguments()
    out = Path(args.out)
    if args.make:
        for case in _asked(args):
            _jobs(args, case["queue"], case["order"])
        return
    results = read_results([*map(Path, args.merge), out])
    if not args.table:
        began, longest = time.monotonic(), 0.0
        for case in _asked(args):
            left = args.seconds - (time.monotonic() - began)
            if left < 1.2 * longest:
                print(f"Stopped: {left:.0f} s are left, and a queue took {longest:.0f} s.", flush=True)
                break
            at = time.monotonic()
            found = _measured(args, **case)
            longest = max(longest, time.monotonic() - at)
            results = [each for each in results if key_of(each) != key_of(found)] + [found]
            write_results(out, results)
            ended = sum(job["state"] == "ended" for job in found["jobs"])
            print(f"{case}: makespan {max(job['end_s'] for job in found['jobs']):.1f} s, {ended} ended", flush=True)
    elif args.merge:
        write_results(out, results)
    if results:
        show("queues", rows_of(results), args.json)
    if args.cdf:
        Path(args.cdf).write_text(json.dumps([{"case": key_of(each), "cdf": cdf_of(each)} for each in results]))


def _asked(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for queue in args.queues:
        for order in args.orders:
            for method in args.methods:
                yield {"queue": queue, "order": order, "method": method}


def _measured(args: argparse.Namespace, queue: str, order: int, method: str) -> dict[str, Any]:
    """One queue, run in one way."""
    # Sockets of CUDA MPS lie in the folder, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="q") as name, ExitStack() as stack:
        jobs = _jobs(args, queue, order)
        if args.memory_gb is not None and args.device == "cuda":
            stack.enter_context(_ballast(args.memory_gb))
        use = stack.enter_context(DeviceUse(args.device))
        case = Case(Path(name), args.device, jobs, Path(args.data).resolve())
        ended, start_s = METHODS[method](case)
    return {
        "machine": _machine(args.device),
        "queue": queue,
        "order": order,
        "method": method,
        "memory_gb": args.memory_gb,
        "epochs": args.epochs,
        "scale": args.scale,
        "jobs_asked": args.jobs,
        "service_start_s": start_s,
        "utilisation": use.utilisation(),
        "memory_used_gb": use.most_memory_gb(),
        "jobs": ended,
    }


def _jobs(args: argparse.Namespace, queue: str, order: int) -> list[tuple[QueuedJob, dict[str, Any]]]:
    """The jobs of a queue in their order of arrival, with graphs that are made where they are not there."""
    data = Path(args.data).resolve()
    data.mkdir(parents=True, exist_ok=True)
    return [
        (job, job.fields(data, args.scale, args.epochs, args.device, args.threads))
        for job in jobs_of(queue, args.jobs, order)
    ]


def _processes(at_once: int, mps: bool) -> Callable[[Case], tuple[Ended, float]]:
    """New processes, so many at once, in the order of arrival."""

    def run(case: Case) -> tuple[Ended, float]:
        environment: dict[str, str] = {}
        with ExitStack() as stack:
            if mps and case.device == "cuda":
                lacks = mps_lacks(case.folder / "mps")
                if lacks is not None:
                    raise SystemExit(f"CUDA MPS cannot be used: {lacks}.")
                daemon = started_mps(case.folder / "mps")
                stack.callback(daemon.close)
                environment = daemon.environment
            began = time.monotonic()
            with ThreadPoolExecutor(at_once) as pool:
                waiting = [
                    pool.submit(_trained, case, number, job, fields, environment, began)
                    for number, (job, fields) in enumerate(case.jobs)
                ]
                return [each.result() for each in waiting], 0.0

    return run


def _trained(
    case: Case, number: int, job: QueuedJob, fields: dict[str, Any], environment: dict[str, str], began: float
) -> dict[str, Any]:
    """One `penstock train`."""
    file, run = case.folder / f"{number}.yaml", case.folder / f"run-{number}"
    file.write_text(yaml.safe_dump(fields))
    start = time.monotonic()
    command = [*PENSTOCK, "train", str(file), "--run", str(run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    end = time.monotonic()
    state = "ended" if done.returncode == 0 else "failed"
    reason = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1][:300]
    times = {"start_s": start - began, "end_s": end - began, "ran_s": end - start}
    return {"name": job.name, "state": state, "reason": reason, "tries": 1, **times, **outcome_of(run)}


def _service(*words: str) -> Callable[[Case], tuple[Ended, float]]:
    """A service with these options, to which all jobs are submitted at once."""

    def run(case: Case) -> tuple[Ended, float]:
        at = time.monotonic()
        service = ServiceProcess(case.folder / "queue", "--allow", str(case.data), *words)
        service.start()
        start_s = round(time.monotonic() - at, 2)
        began = time.time()
        numbers = [service.queue.submit(fields)[0] for _, fields in case.jobs]
        records = service.queue.wait(*numbers)
        found = []
        for (job, _), record in zip(case.jobs, records, strict=True):
            started, ended = record["started"] or record["submitted"], record["ended"] or time.time()
            found.append(
                {
                    "name": job.name,
                    **{name: record[name] for name in ("state", "reason", "tries", "device_bytes", "host_bytes")},
                    "forecast_s": record["forecast"].get("seconds"),
                    "method": record["forecast"].get("method"),
                    "share": record["forecast"].get("throughput_share"),
                    "peak_device_bytes": record["peak_device_bytes"],
                    "start_s": started - began,
                    "end_s": ended - began,
                    "ran_s": record["seconds"],
                    **outcome_of(Path(record["run"])),
                }
            )
        service.stop()
        return found, start_s

    return run


METHODS: dict[str, Callable[[Case], tuple[Ended, float]]] = {
    "cold": _processes(1, mps=False),
    "warm": _service("--policy", "base", "--concurrent", "1", "--sharing", "time-slices"),
    **{f"mps-{count}": _processes(count, mps=True) for count in (2, 4, 8)},
    **{name: _service("--policy", name) for name in ("base", "lmcf", "bmc", "fit")},
    **{f"fit-{count}": _service("--policy", "fit", "--concurrent", str(count)) for count in (2, 4, 8)},
    "streams": _service("--policy", "fit", "--sharing", "streams"),
    "slices": _service("--policy", "fit", "--sharing", "time-slices"),
}

_BALLAST = """
import sys
import torch
free, _ = torch.cuda.mem_get_info()
kept = torch.empty(max(0, free - int({gb} * 1e9)), dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def _ballast(gb: float) -> Iterator[None]:
    """A process that keeps all but so much of the GPU."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BALLAST.format(gb=gb)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise SystemExit("The memory that the queue should not have could not be taken.")
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def _machine(device: str) -> str:
    if device != "cuda":
        return f"{platform.machine()} cpu"
    import torch

    return str(torch.cuda.get_device_name())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--queues", nargs="+", default=list(QUEUES), choices=QUEUES)
    parser.add_argument("--orders", nargs="+", type=int, default=list(range(10)), help="seeds of arrival orders")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--scale", type=float, default=1.0, help="of the graphs' vertices and edges")
    parser.add_argument("--threads", type=int, default=1, help="of each job")
    parser.add_argument("--memory-gb", type=float, default=None, help="what the queue may have of the GPU")
    parser.add_argument("--seconds", type=float, default=1e9, help="no queue is begun that would not end by then")
    parser.add_argument("--data", default="queue-graphs", help="a folder for the graphs, which are made once")
    parser.add_argument("--make", action="store_true", help="only make the graphs")
    parser.add_argument("--out", default="queue-results.json", help="results are added to this file after every queue")
    parser.add_argument("--merge", nargs="*", default=[], help="files of other calls, whose results are added")
    parser.add_argument("--table", action="store_true", help="only merge and print")
    parser.add_argument("--cdf", default=None, help="a file for when which share of the jobs has ended")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
