"""How many source files a reader must open to follow a batch: those whose code runs while batches 10 to 20 are trained.

Four runs are watched: on the CPU, with captured steps (on a GPU, or in Triton's interpreter where there is none), as
one of two workers of a cluster, and as a job of the queue. Each start of a Python function is seen while the first
process that trains is between its 10th and its 20th step; of the queue, in all processes from the submission of a job
to its end. Code that Numba or Triton has compiled, or that a GPU replays, does not count, and neither do imports.
Run, in the root of a checkout: python benchmarks/files_touched.py [--only cpu,captured,worker,queue] [--list] [--json]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AIMS = {"cpu": 32, "captured": 28, "worker": 60, "queue": 130}
JOB = {"model": "sage", "hidden": 16, "fanouts": "5,3", "batch_size": 16, "epochs": 1, "threads": 1, "seed": 3}

# Every Python process imports it at its start. The first byte of the file `window` says whether files count now.
WATCH = """
import mmap, os, sys, threading
folder, sources = os.environ["FILES_TOUCHED"].split(os.pathsep)
window = mmap.mmap(os.open(folder + "/window", os.O_RDWR), 1)
seen, steps = set(), {}

def step():
    pid = os.getpid()
    steps[pid] = steps.get(pid, 0) + 1
    if steps[pid] == 10 and window[0] == 0:
        with open(folder + "/trainer", "w") as file:
            file.write(str(pid))
        window[0] = 1
    elif steps[pid] == 20 and window[0] == 1 and trainer() == str(pid):
        window[0] = 2

def trainer():
    return open(folder + "/trainer").read() if os.path.exists(folder + "/trainer") else ""

def entered(code, *rest):
    if code.co_name == "_count" and code.co_filename == sources + "/train/loop.py":
        step()
    key = os.getpid(), code
    # Bodies of modules and classes run when they are imported: they lack the first flag.
    if window[0] == 1 and code.co_flags & 1 and key not in seen and code.co_filename.startswith(sources):
        seen.add(key)
        with open(f"{folder}/{key[0]}.files", "a") as file:
            file.write(f"{code.co_filename[len(sources) + 1:]} {code.co_firstlineno} {code.co_name}\\n")

if sys.version_info >= (3, 12):
    events = sys.monitoring.events.PY_START | sys.monitoring.events.PY_RESUME
    sys.monitoring.use_tool_id(4, "files touched")
    for event in (sys.monitoring.events.PY_START, sys.monitoring.events.PY_RESUME):
        sys.monitoring.register_callback(4, event, entered)
    sys.monitoring.set_events(4, events)
else:
    def traced(frame, event, given):
        entered(frame.f_code)
    threading.settrace(traced)
    sys.settrace(traced)
"""

# Captured steps where there is no GPU, made ready as tests make them.
INTERPRETED = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
import pytest
root = sys.argv[1]
sys.path[:0] = [root + "/tests", root + "/tests/train/device"]
from interpreted_kernels import launch_faster, overflow_unchecked
launch_faster()
overflow_unchecked(pytest.MonkeyPatch())
import sitecustomize
from device_steps import bursts, schedule_of
from penstock.pipeline.schedule import START
from test_captured_steps import session_of
from training_graphs import community_graph
session = session_of(community_graph(120), batch_size=2)
schedule = schedule_of(session)
with session.execution.steps(schedule, START, bursts(schedule, 3), lambda *work: None) as taken:
    for done in taken:
        for each in done:
            sitecustomize.step()
"""


class Watched:
    """A folder in which watched processes say what they run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sitecustomize.py").write_text(WATCH)
        (folder / "window").write_bytes(b"\0")
        sources = [str(folder), str(ROOT / "src"), str(ROOT / ".gpu/site")]
        self.environment = {
            **os.environ,
            "FILES_TOUCHED": os.pathsep.join([str(folder), str(ROOT / "src/penstock")]),
            "PYTHONPATH": os.pathsep.join(sources),
            "PENSTOCK_OPERATORS": "shipped",
        }

    def run(self, *words: str) -> str:
        """What a program prints; its failure is ours."""
        done = subprocess.run(
            [sys.executable, *words], env=self.environment, capture_output=True, text=True, cwd=self.folder, timeout=600
        )
        if done.returncode:
            raise RuntimeError(f"{words}: exit status {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def mark(self, state: int) -> None:
        """Open the window by hand (1), or close it (2)."""
        with (self.folder / "window").open("r+b") as file:
            file.write(bytes([state]))

    def functions(self, all_processes: bool) -> dict[str, dict[str, list[str]]]:
        """What ran in the window, in the process that trained or in all: functions by process, by file."""
        if (self.folder / "window").read_bytes() != b"\2":
            raise RuntimeError("no process has done 20 steps")
        trained = "*" if all_processes else (self.folder / "trainer").read_text()
        found: dict[str, dict[str, list[str]]] = {}
        for log in self.folder.glob(f"{trained}.files"):
            for line in log.read_text().splitlines():
                file, first, name = line.split(" ", 2)
                found.setdefault(file, {}).setdefault(log.stem, []).append(f"{name}:{first}")
        return found


def flags(**fields: object) -> list[str]:
    """A job's fields as words of the command line."""
    return [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def has_gpu() -> bool:
    """Whether a GPU is there; asked by another process, so that this one imports nothing."""
    asked = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def through_queue(watched: Watched, graph: str) -> None:
    """A service trains one job."""
    job = {**JOB, "graph": graph, "fanouts": [5, 3], "device": "cpu"}
    (watched.folder / "job.yaml").write_text(json.dumps(job))
    at = ["--folder", str(watched.folder / "service")]
    serve = [sys.executable, "-m", "penstock", "serve", *at, "--allow", str(Path(graph).parent)]
    with (watched.folder / "serve.txt").open("w") as log:
        service = subprocess.Popen(serve, env=watched.environment, stdout=log, stderr=log, cwd=watched.folder)
    try:
        for _ in range(120):
            time.sleep(1)
            if service.poll() is not None:
                raise RuntimeError((watched.folder / "serve.txt").read_text()[-2000:])
            try:
                watched.run("-m", "penstock", "queue", *at, "--json")
                break
            except RuntimeError:
                continue
        watched.mark(1)
        said = watched.run("-m", "penstock", "submit", "job.yaml", *at, "--json")
        number = re.search(r'"id": (\d+)', said)
        watched.run("-m", "penstock", "wait", number[1] if number else "1", *at, "--json")
        watched.mark(2)
        watched.run("-m", "penstock", "serve", "--drain", *at, "--json")
        service.wait(60)
    finally:
        if service.poll() is None:
            service.kill()
            service.wait()


def touched(name: str, graph: str) -> dict[str, dict[str, list[str]]]:
    """What one of the four runs executes: functions by process, by file."""
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(Path(folder))
        train = ["-m", "penstock", "train", "--graph", graph, "--run", "run", "--json"]
        if name == "queue":
            through_queue(watched, graph)
        elif name == "captured" and not has_gpu():
            watched.run("-c", INTERPRETED, str(ROOT))
        else:
            more = {"cpu": ["--device", "cpu"], "captured": ["--device", "cuda"]}
            watched.run(*train, *flags(**JOB), *more.get(name, ["--device", "cpu", "--cluster", "2x1"]))
        return watched.functions(name == "queue")


def main() -> None:
    """Watch the runs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(AIMS), help="runs, with commas between them")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true", help="each file's functions, by process")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        graph = f"{folder}/graph"
        make = ["-m", "penstock", "data", "make", "synthetic-arxiv", "--scale", "0.01", "--out", graph]
        subprocess.run([sys.executable, *make], check=True, capture_output=True)
        for name in options.only.split(","):
            functions = touched(name, graph)
            found[name] = sorted(functions)
            for file in found[name] if options.list else ():
                for process, those in sorted(functions[file].items()):
                    print(f"{file} in {process}: {', '.join(those)}")
            if not options.json:
                rooms = sorted({each.rpartition("/")[0] for each in found[name]})
                print(f"{name}: {len(found[name])} files in {len(rooms)} folders (aim {AIMS[name]})")
                for room in rooms:
                    inside = [each.rpartition("/")[2] for each in found[name] if each.rpartition("/")[0] == room]
                    print(f"  {room or '.'}: {', '.join(inside)}")
    if options.json:
        print(json.dumps({name: {"count": len(files), "files": files} for name, files in found.items()}))


if __name__ == "__main__":
    main()
