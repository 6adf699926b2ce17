"""Does the exchange of rows in bins hide communication behind compute on real links, as the simulator says?

Hosts in a box (hosts.py), one worker each, train on the whole graph with the real system. Links are such that a step's
communication takes 0.5, 1 or 2 times its compute: the bytes of rows and gradients that the busiest host sends, against
the seconds that the busiest worker computes. Three ways to compute:

  sleep   bins take as long as the plan's profile predicts, by sleeping (whole_graph_sleeper.py), and everything runs
          `slower` times slower than the plan, links too: real arithmetic is then a small part of every bin, and
          only the schedule is measured, however many hosts share this machine's processors
  quota   bins are really computed, by hosts that have a share of a processor each (control groups, version 1) from the
          end of the first epoch on, when graphs are read and connections made
  own     bins are really computed at full speed, on a machine that has a processor or more for every host

Graphs of a size that fits this machine have bins of a millisecond, much of which does not depend on their size. In
`sleep` a vertex therefore stands for `times` of them: rows and edges cost so many times more, and links are as much
slower. With `--bins auto` bins are as many as the plan chooses by predicted time.

Ways: `bins` with each `pipeline`, `layer` (one bin), `boundary` with a fifth of the rows, and `replicate`. Seconds are
those of the plan, which is `slower` times less than what the clock says in `sleep`. `epoch` is the median of all epochs
but the first two, `simulated` and `bound` are the plan's prediction and lower bound for the same task graph with fair
links, `exposed` is how long the first worker waits for rows in an epoch, `rows` how many it receives, `replicated` how
many of others' rows it computes, `ours` how many times faster than `layer` (give it first), and `processors` the share
of this machine's processors that was busy. `replicate` decides by the costs of the plan, as planned runs do.
Run, as root: python benchmarks/whole_graph_hosts.py [--graphs arxiv,products,coauthor-cs] [--models gcn,sage]
[--hosts 4,8] [--ratios 0.5,1,2] [--ways both,layer] [--compute sleep] [--out rows.json] [--json]
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import yaml

from forked_hosts import ForkedTask, ForkingLauncher, start_forking
from hosts import Host, HostLauncher, hosts, shown_on_hosts, started_on
from penstock.cluster.layout import Setup
from penstock.cluster.profiling import profile_job
from penstock.cluster.run import start_cluster_run
from penstock.cost.profile import CostSpread, Profile, read_profile, write_profile
from penstock.graph.convert import load
from penstock.graph.generate import make_graph, recipe_named
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import machines_of
from penstock.partition import Cut, cut
from penstock.plan.comparison import Comparison, Trial
from penstock.plan.placement import PlacedUnits
from penstock.plan.workloads.entry import PlannedRun
from penstock.plan.workloads.whole import WHOLE
from penstock.plan.workloads.whole_section import MESSAGE, WholeGraphExecution, layer_costs
from penstock.progress import SILENT
from penstock.train.dataset.prepared_graph import open_data
from penstock.train.job import Job, job_of
from penstock.train.run_files.run_folder import METRICS
from replay import PAYLOAD
from testbed import NOTHING_ELSE
from whole_graph_cases import volume
from whole_graph_sleeper import VARIABLE

WAYS: dict[str, dict[str, Any]] = {
    "layer": {"exchange": "layer", "bins": 1},
    "none": {"exchange": "bins", "pipeline": "none"},
    "inter": {"exchange": "bins", "pipeline": "inter"},
    "intra": {"exchange": "bins", "pipeline": "intra"},
    "both": {"exchange": "bins", "pipeline": "both"},
    "boundary": {"exchange": "boundary", "boundary_share": 0.2},
    "replicate": {"exchange": "replicate"},
}
GRAPHS = {"arxiv": "synthetic-arxiv", "products": "synthetic-products"}
"""Synthetic ones; others are files of the data folder."""
GROUPS, PERIOD = Path("/sys/fs/cgroup/cpu"), 10_000
"""Control groups of processors, and microseconds after which a quota is there again."""
COLUMNS = 16
"""Features of a vertex: they are fetched before the first step, over slow links."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A job on so many hosts, and what its plan is made from."""

    graph: str
    model: str
    hosts: int
    folder: Path
    parts: Path
    profile: Path

    def job(self, fields: dict[str, Any], options: argparse.Namespace, name: str) -> Job:
        """One way to exchange rows."""
        return job_of(
            {"graph": str(self.folder / self.graph), "run": str(self.folder / name), "sampler": "whole"}
            | {"model": self.model, "layers": options.layers, "hidden": options.hidden, "epochs": options.epochs}
            | {"scope": "all", "threads": 1, "bins": options.bins, **NOTHING_ELSE, **fields}
        )

    def cluster(self, gbps: float, addresses: list[str]) -> ClusterDocument:
        """One worker on each host."""
        machines = [
            {"name": f"host{number}", "address": address, "workers": 1, "nic_gbps": gbps, "cores": 4}
            for number, address in enumerate(addresses)
        ]
        about = {"machines": machines, "partition": str(self.parts), "wire": {"security": "token"}}
        return ClusterDocument.model_validate(about)


def main() -> int:
    return shown_on_hosts("whole graph on hosts", _options(), measure)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each graph, model, number of hosts, ratio and way."""
    rows = []
    start_forking()
    with tempfile.TemporaryDirectory() as scratch:
        for case in _cases(options, Path(scratch)):
            for ratio in options.ratios:
                layer = float("nan")
                for way in options.ways:
                    row = _measured(case, ratio, way, options)
                    layer = row["epoch"] if way == "layer" else layer
                    rows.append(row | {"ours": layer / row["epoch"]})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _cases(options: argparse.Namespace, scratch: Path) -> Iterator[Case]:
    for graph in options.graphs:
        _graph(graph, options, scratch)
        for model in options.models:
            profile = scratch / f"{graph}-{model}.json"
            for count in options.hosts:
                parts = scratch / f"{graph}-{count}"
                if not parts.exists():
                    cut(load(scratch / graph), Cut(count, refine="balanced"), parts)
                case = Case(graph, model, count, scratch, parts, profile)
                if not profile.exists():
                    job = case.job({}, options, "profile")
                    measured = profile_job(job, case.cluster(1.0, ["127.0.0.1"]), 5, SILENT)
                    write_profile(_larger(measured, options.times if options.compute == "sleep" else 1.0), profile)
                yield case


def _larger(profile: Profile, times: float) -> Profile:
    """The profile of a graph that has `times` the rows and edges in every bin."""
    costs = layer_costs(profile, "cpu")
    operators = []
    for each in profile.operators:
        if each.name == MESSAGE:
            operators.append(each)
            continue
        direction, layer = each.name.split()
        line, size = getattr(costs[int(layer)], direction), each.sizes
        larger = line.seconds(*(times * size[name] for name in ("rows", "edges", "inputs")))
        operators.append(each.model_copy(update={"seconds": CostSpread(mean=larger)}))
    return profile.model_copy(update={"operators": operators})


def _graph(name: str, options: argparse.Namespace, scratch: Path) -> None:
    if name in GRAPHS:
        recipe = recipe_named(GRAPHS[name])
        recipe = recipe.scaled(options.nodes / recipe.nodes["node"].count)
        nodes = {"node": dataclasses.replace(recipe.nodes["node"], features=COLUMNS)}
        make_graph(dataclasses.replace(recipe, nodes=nodes), scratch / name)
    else:
        graph = load(options.data / f"{name}.npz")
        (nodes,) = graph.nodes.values()
        nodes.fields["x"] = np.ascontiguousarray(nodes.fields["x"][:, :COLUMNS])
        graph.save(scratch / name)


def _measured(case: Case, ratio: float, way: str, options: argparse.Namespace) -> dict[str, Any]:
    name = f"{case.graph}-{case.model}-{case.hosts}-{ratio:g}-{way}"
    profile = read_profile(case.profile)
    compute, sent = _volume(case, profile, options)
    gbps = sent * 8 / (ratio * compute) / 1e9
    slower = {"sleep": options.seconds / compute, "quota": 1 / options.share, "own": 1.0}[options.compute]
    with ExitStack() as stack:
        bed = stack.enter_context(hosts([gbps * 1000 / slower / PAYLOAD] * case.hosts))
        machines = {f"host{number}": host for number, host in enumerate(bed)}
        cluster = case.cluster(gbps, [host.address for host in bed])
        section = _section(case.job(WAYS[way], options, name), cluster, profile)
        decided = {"bins": section.bins, "replicate_costs": section.replicate_costs}
        job = case.job({**WAYS[way], **decided}, options, name)
        trial = _simulated(section, cluster, profile)
        launcher: type[HostLauncher] = ForkingLauncher
        if options.compute == "sleep":
            launcher = stack.enter_context(_sleeping(profile, slower, case.folder / "seconds.json"))
        if options.compute == "quota":
            launcher = stack.enter_context(_quotas(machines, options.share, Path(str(job.run)) / METRICS))
        result, processors = _carried_out(job, cluster, machines, launcher)
    epochs = [seconds / slower for seconds in result["epoch_seconds"][2:]]
    epoch, simulated, bound = statistics.median(epochs), trial.iteration_s, trial.lower_bound_s
    return {
        "graph": case.graph,
        "model": case.model,
        "hosts": case.hosts,
        "ratio": ratio,
        "way": way,
        "bins": result["bins"],
        "compute": compute,
        "epoch": epoch,
        "simulated": simulated,
        "bound": bound,
        "over simulated": epoch / simulated,
        "over bound": epoch / bound,
        "exposed": result["exposed_communication_s"] / slower / options.epochs,
        "rows": result["halo_rows"],
        "replicated": result["replicated_rows"],
        "predicted rows": sum(int(np.array(layer.sent)[:, :, 0].sum()) for layer in section.layers),
        "slower": slower,
        "mbit": bed[0].rate_mbit,
        "processors": processors,
    }


def _volume(case: Case, profile: Profile, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds that the busiest worker computes in a step, and bytes of rows and gradients that the busiest sends."""
    cluster = case.cluster(1.0, ["127.0.0.1"] * case.hosts)
    section = _section(case.job(WAYS["layer"], options, "counted"), cluster, profile)
    return volume([layer.counted() for layer in section.layers], profile)


def _section(job: Job, cluster: ClusterDocument, profile: Profile) -> WholeGraphExecution:
    planned = PlannedRun(cluster, job, profile, "cpu", 0.0, open_graph=partial(open_data, job))
    found: WholeGraphExecution = WHOLE.set_up(planned)
    return found


def _simulated(section: WholeGraphExecution, cluster: ClusterDocument, profile: Profile) -> Trial:
    """A step whose flows share links as TCP does."""
    planned = Comparison(WHOLE.build(profile, section), machines_of(cluster, profile.rate))
    return planned.trial(
        PlacedUnits("pinned", planned.problem.machine_of(planned.problem.home), 0.0, 0, 0, 0.0), "fair"
    )


def _carried_out(
    job: Job, cluster: ClusterDocument, machines: dict[str, Host], launcher: type[HostLauncher]
) -> tuple[dict[str, Any], float]:
    file = Path(str(job.run)).with_suffix(".yaml")
    file.write_text(yaml.safe_dump(cluster.model_dump(mode="json", exclude_defaults=True)))
    before, began = psutil.cpu_times(), time.perf_counter()
    with started_on(machines, launcher):
        result: dict[str, Any] = start_cluster_run(job, str(file)).facts["result"]
    after, seconds = psutil.cpu_times(), time.perf_counter() - began
    busy = sum(getattr(after, name) - getattr(before, name) for name in ("user", "system", "softirq", "nice"))
    return result, busy / seconds / (psutil.cpu_count() or 1)


@contextmanager
def _sleeping(profile: Profile, slower: float, file: Path) -> Iterator[type[HostLauncher]]:
    """A launcher whose tasks let bins take `slower` times what the profile says."""
    costs = layer_costs(profile, "cpu")
    lines = {way: [[slower * term for term in getattr(cost, way)] for cost in costs] for way in ("forward", "backward")}
    file.write_text(json.dumps(lines))

    class SleepingLauncher(ForkingLauncher):
        program = "from whole_graph_sleeper import run_sleeping; run_sleeping()"

    with patch.dict(os.environ, {VARIABLE: str(file)}):
        yield SleepingLauncher


@contextmanager
def _quotas(machines: dict[str, Host], share: float, metrics: Path) -> Iterator[type[HostLauncher]]:
    """A launcher whose hosts have a share of a processor each once `metrics` has the first epoch."""
    ended = threading.Event()

    def limit() -> None:
        while not metrics.exists() or '"epoch"' not in metrics.read_text():
            if ended.wait(0.05):
                return
        for group in groups.values():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(round(share * PERIOD)))

    watch = threading.Thread(target=limit)
    groups = {name: GROUPS / host.namespace for name, host in machines.items()}

    class QuotaLauncher(ForkingLauncher):
        def start(self, setup: Setup) -> ForkedTask:
            started = super().start(setup)
            (groups[setup.task.machine] / "cgroup.procs").write_text(str(started.pid))
            return started

    try:
        for group in groups.values():
            group.mkdir()
        watch.start()
        yield QuotaLauncher
    finally:
        ended.set()
        watch.join()
        for group in groups.values():
            if group.exists():
                group.rmdir()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=_names, default=[*GRAPHS, "coauthor-cs"])
    parser.add_argument("--models", type=_names, default=["gcn", "sage"])
    parser.add_argument("--hosts", type=lambda text: [int(part) for part in text.split(",")], default=[4, 8])
    parser.add_argument("--ratios", type=lambda text: [float(part) for part in text.split(",")], default=[0.5, 1, 2])
    parser.add_argument("--ways", type=_names, default=list(WAYS))
    parser.add_argument("--compute", choices=["sleep", "quota", "own"], default="sleep")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a step's compute takes by the clock: `sleep`")
    parser.add_argument("--share", type=float, default=0.2, help="of a processor that each host has: `quota`")
    parser.add_argument("--times", type=float, default=40.0, help="vertices that one stands for: `sleep`")
    parser.add_argument("--bins", default="auto")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=20_000, help="of synthetic graphs")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
