"""Does a run with sampler explained end with the same bits, whoever is killed, paused or silent, and is nothing left?

Two machines with a store and a worker each, and a parameter server, train undisturbed, and then again with one trouble
for each run. Explainers, the processes beside workers that make explanations: killed (-9) while they explain and while
they wait, paused for less than the run's patience, and silent (stopped) until they are replaced. Other tasks: each
worker, each store, the parameter server and the coordinator (the command itself, whose run is then resumed) are killed
before the first explanation, while it is made, or when one is in force. (Sampler tasks are refused with this sampler.)
The last checkpoint, the best model and all losses must be those of the undisturbed run, bit for bit, and no process and
no shared memory may be left.
Run: python benchmarks/explained_kills.py [--only explainer worker ...] [--json]
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from clusters import ClusterRun, arguments_for, cluster_file, communities, losses, result_of, same_end, trained
from penstock.partition import Cut, cut
from penstock.train.run_files.run_folder import METRICS

EVERY, DELAY = 20, 5
LIMIT = 300.0
"""Seconds after which a run counts as hanging."""
PATIENCE, PAUSE = 15.0, 4.0
"""Seconds after which an explainer counts as lost, and that a paused one stands still."""
MOMENTS = {"before": 4, "explaining": EVERY, "in force": EVERY + DELAY + 6, "again": 2 * EVERY}
"""Steps from which on it happens: before the first explanation, while it is made, under it, while the next is made."""
JOB = {
    "sampler": "explained",
    "fanouts": "5,5",
    "hidden": 32,
    "batch-size": 40,
    "epochs": 30,
    "dropout": 0.3,
    "evaluate-every": 5,
    "explain-every": EVERY,
    "feature-share": 0.5,
    "checkpoint-steps": 9,
    "checkpoint-minutes": 0,
    "threads": 1,
}
INTERNALS = {"explain_delay": DELAY, "explain_rows": 128, "explain_steps": 50}


class Case(NamedTuple):
    """What is done to whom, and when."""

    victim: str
    what: str
    moment: str


CASES = [
    Case("explainer", "killed", "explaining"),
    Case("explainer", "killed", "in force"),
    Case("explainer", "paused", "again"),
    Case("explainer", "silent", "again"),
    *(Case("worker-0", "killed", moment) for moment in ("explaining", "in force")),
    *(Case("worker-1", "killed", moment) for moment in ("before", "again")),
    *(Case("store-m0", "killed", moment) for moment in ("explaining",)),
    *(Case("store-m1", "killed", moment) for moment in ("in force",)),
    *(Case("server-0", "killed", moment) for moment in ("explaining", "in force")),
    *(Case("coordinator", "killed", moment) for moment in ("explaining", "in force")),
]


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder, graph = Path(scratch), communities()
        graph.save(folder / "graph")
        cut(graph, Cut(2, 1, "metis"), folder / "parts")
        cluster = cluster_file(
            folder / "cluster.yaml",
            machines=[{"name": "m0"}, {"name": "m1"}],
            partition=str(folder / "parts"),
            reduce="servers",
            servers=1,
            failure={"patience": PATIENCE},
        )
        whole = trained(folder / "graph", folder / "whole", cluster, JOB, LIMIT, INTERNALS)
        chosen = [case for case in CASES if not arguments.only or case.victim.partition("-")[0] in arguments.only]
        rows = [_disturbed(folder, cluster, whole, number, case) for number, case in enumerate(chosen)]
    good = sum(row["good"] for row in rows)
    if arguments.json:
        print(json.dumps({"job": JOB, "runs": len(rows), "good": good, "rows": rows}))
    print(f"{good} of {len(rows)} disturbed runs ended with equal bits and left nothing.", file=sys.stderr)
    sys.exit(good != len(rows))


def _disturbed(folder: Path, cluster: str, whole: Path, number: int, case: Case) -> dict[str, Any]:
    """A run with one trouble, started again where it had ended before anything could happen."""
    for attempt in range(5):
        run, shared = folder / f"run-{number}-{attempt}", _shared_memory()
        running = ClusterRun(run, *arguments_for(folder / "graph", run, cluster, JOB), internals=INTERNALS)
        if not _reached(running, run, MOMENTS[case.moment]):
            running.finished(LIMIT)
            continue
        hit = _do(running, case)
        ended, status, complaint = _end(running, run, case)
        if not hit:
            continue
        result = result_of(run) if status == 0 else {}
        row: dict[str, Any] = {**case._asdict(), "hit": hit, "status": status}
        row["replaced"] = [each["task"] for each in result.get("recoveries", [])]
        row["explainers_lost"] = result.get("explanations", {}).get("explainers_lost")
        row["equal"] = status == 0 and same_end(run, whole) and losses(run) == losses(whole)
        row["left"] = sorted(_shared_memory() - shared) + [each for one in ended for each in _left(one)]
        row["good"] = row["equal"] and not row["left"]
        row |= {"complaint": complaint[-300:]} if status else {}
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row
    return {**case._asdict(), "good": False, "complaint": "every run ended before anything could happen"}


def _reached(running: ClusterRun, run: Path, step: int) -> bool:
    """Wait until a run has recorded a step; whether it has before it ended."""
    while not running.ended():
        if _steps(run) >= step:
            return True
        time.sleep(0.01)
    return False


def _steps(run: Path) -> int:
    with suppress(OSError, ValueError, KeyError):
        lines = [line for line in (run / METRICS).read_text().splitlines() if line.endswith("}")]
        return max((json.loads(line)["step"] for line in lines), default=0)
    return 0


def _do(running: ClusterRun, case: Case) -> list[int]:
    """Carry a case out; the processes that it happened to."""
    processes = _victims(running, case.victim)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL if case.what == "killed" else signal.SIGSTOP)
    if case.what == "paused":
        time.sleep(PAUSE)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    return [process.pid for process in processes]


def _victims(running: ClusterRun, victim: str) -> list[psutil.Process]:
    """The processes that a case names; of explainers all."""
    with suppress(psutil.NoSuchProcess):
        me = psutil.Process(running.process.pid)
        if victim == "coordinator":
            return [me]
        if victim == "explainer":
            return [each for each in me.children(recursive=True) if "explainer_process" in " ".join(each.cmdline())]
    return [process for name, process in running.tasks().items() if name == victim]


def _end(running: ClusterRun, run: Path, case: Case) -> tuple[list[ClusterRun], int, str]:
    """Wait for the end of a run; one whose coordinator was killed is resumed when its tasks are gone."""
    status, _, complaint = running.finished(LIMIT)
    if case.victim != "coordinator":
        return [running], status, complaint
    _left(running)
    again = ClusterRun(run, "--resume", str(run))
    status, _, complaint = again.finished(LIMIT)
    return [running, again], status, complaint


def _left(running: ClusterRun) -> list[str]:
    """Processes of a run that are still there; what is about to end is given a while."""
    until = time.monotonic() + 60
    while (left := running.left()) and time.monotonic() < until:
        time.sleep(0.2)
    return left


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    victims = sorted({case.victim.partition("-")[0] for case in CASES})
    parser.add_argument("--only", nargs="+", choices=victims, default=[], help="only cases with these victims")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
