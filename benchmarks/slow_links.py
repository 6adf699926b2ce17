"""Ways to send fewer bytes, on slow links: bytes of an epoch, and its seconds on links of 25 to 1,000 Mbit/s.

Every way is one run of a real cluster, a machine with a store, a worker and, for sampler explained, an explainer
process for each part. Links change between epochs: first they are free until explanations are in force, then each rate
of `--rates` has some epochs, of which the first, whose batches were pulled before, is left out. An epoch's seconds are
the median of the others. Bytes between tasks are an epoch's share of the whole run's, requests and headers
included: rows, lists and explanations apart. Those of explained ways are for an epoch with an explanation in force:
what the steps before the first one have brought is taken off, which the same way without `explained` tells.

Links are those of hosts in a box (hosts.py: namespaces, limits both ways, gradients included) or, where there are none,
limits on what a machine's tasks send (limited_task.py: rows and lists, not gradients); `limits` of a line says
which. All hosts share this machine's processors: seconds at 10,000 Mbit/s are those without any limit.

Ways are those of explained.py: neighbour, fastgcn, ladies, explained, explained-nodes, explained-columns, each also
with -float16, -int8 and -cache (a tenth of the halo's rows); explained:share=0.5,bias=0.2 has other settings.
`--method`, `--columns` and `--layers` change what all ways have: how the graph is cut, how many columns its rows have
(some of them, or all repeated), layers of the model.
Each run is a line of `--out`, written as it ends; one that is there is not done again.
Run: python benchmarks/slow_links.py [--data ../shared/data] [--graph amazon-photo] [--ways neighbour explained-int8]
[--rates 1000 250 100 25] [--limits auto] [--case-limit 60] [--out slow_links.jsonl] [--summary]
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from explained import DATA, halo_bytes, read_lines, settings_of, split_way, training_vertices
from hosts import Host, hosts, limit_again, started_on
from limited_task import Bucket
from penstock.cluster import run as cluster_run
from penstock.cluster.launch.local import LocalLauncher, LocalProcess, log_of
from penstock.cluster.layout import Setup
from penstock.errors import PenstockError
from penstock.partition import Cut, cut
from penstock.progress import Progress
from penstock.train.dataset.prepared_graph import open_data
from penstock.train.job import job_of

FREE = 10_000.0
"""Mbit/s that no run here comes near."""
LEFT_OUT = 1
"""Epochs of a rate whose batches may have been pulled at the one before."""
LAST = 2
"""Epochs at the end, in which nothing is left to be pulled."""
WAYS = [
    *("neighbour", "neighbour-int8", "neighbour-cache", "neighbour-int8-cache", "neighbour-float16"),
    *("explained", "explained-nodes", "explained-columns", "explained-int8", "explained-cache", "explained-int8-cache"),
    *("fastgcn", "ladies", "fastgcn-int8", "ladies-int8"),
]
OPTIONS = ("graph", "train", "parts", "method", "columns", "layers", "fanout", "batch", "every", "hidden")


class Links:
    """The links of some machines, whose rate can be changed while a run is under way."""

    kind = ""

    def set_rate(self, mbit: float) -> None:
        """From now on every link carries this much."""

    def addresses(self) -> list[dict[str, Any]]:
        """What the cluster file says of the machines' addresses."""
        return []

    def started(self) -> Any:
        """Around a run whose tasks use these links."""


class BoxedLinks(Links):
    """Those of hosts in a box."""

    kind = "namespaces"

    def __init__(self, bed: list[Host]) -> None:
        self._bed = bed

    def set_rate(self, mbit: float) -> None:
        for host in self._bed:
            limit_again(host, mbit)

    def addresses(self) -> list[dict[str, Any]]:
        return [{"address": host.address} for host in self._bed]

    def started(self) -> Any:
        return started_on({f"m{number}": host for number, host in enumerate(self._bed)})


class WireLinks(Links):
    """Limits on what each machine's tasks send."""

    kind = "wire"

    def __init__(self, folder: Path, machines: int) -> None:
        self._paths = {f"m{number}": folder / f"bucket-{number}" for number in range(machines)}
        self._buckets = [Bucket.make(path, FREE * 1e6 / 8) for path in self._paths.values()]

    def set_rate(self, mbit: float) -> None:
        for bucket in self._buckets:
            bucket.set_rate(mbit * 1e6 / 8)

    def addresses(self) -> list[dict[str, Any]]:
        return [{} for _ in self._buckets]

    def started(self) -> Any:
        paths = self._paths
        return patch.object(cluster_run, "make_launcher", lambda cluster, folder: LimitedLauncher(folder, paths))


class LimitedLauncher(LocalLauncher):
    """Starts every task with its machine's bucket."""

    def __init__(self, run: Path, buckets: dict[str, Path]) -> None:
        super().__init__(run)
        self._buckets = buckets

    def start(self, setup: Setup) -> LocalProcess:
        """Start a task that limits what it sends."""
        bucket = self._buckets[setup.task.machine]

        class LimitedProcess(LocalProcess):
            arguments = (str(Path(__file__).with_name("limited_task.py")), str(bucket))

        return LimitedProcess(setup, log_of(setup))


class Phases(Progress):
    """Changes the links' rate when the epochs of the one before are over."""

    def __init__(self, links: Links, warm: int, rates: list[float], epochs: int) -> None:
        super().__init__()
        self._links, self._ended = links, 0
        self._changes = {warm + number * epochs: rate for number, rate in enumerate([FREE, *rates])}

    def status(self, line: str) -> None:
        """An epoch has ended, unless the line is about the middle of one."""
        if ", batch " not in line:
            self._ended += 1
            if self._ended in self._changes:
                self._links.set_rate(self._changes[self._ended])


def main() -> int:
    args = _options()
    if not args.summary:
        with tempfile.TemporaryDirectory() as scratch:
            graph, parts = made(args, Path(scratch))
            try:
                with links_for(args, Path(scratch)) as links:
                    for way in args.ways:
                        measure(args, way, graph, parts, links, Path(scratch))
            except PenstockError as error:
                print(f"Error: {error}", file=sys.stderr)
                return 2
    for row in summary(read_lines(args.out)):
        print(json.dumps(row), flush=True)
    return 0


def made(args: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The graph and its parts."""
    graph = open_data(job_of({"graph": str(args.data / f"{args.graph}.npz")}))
    if args.columns:
        (nodes,) = graph.nodes.values()
        x = np.asarray(nodes.fields["x"])
        nodes.fields["x"] = np.ascontiguousarray(x[:, np.arange(args.columns) % x.shape[1]])
    graph = graph.save(folder / "graph")
    cut(graph, Cut(args.parts, 1, args.method, seed=0), folder / "parts")
    return folder / "graph", folder / "parts"


@contextmanager
def links_for(args: argparse.Namespace, folder: Path) -> Iterator[Links]:
    """Hosts in a box where they can be made, or else limits on the wire."""
    with ExitStack() as stack:
        links: Links | None = None
        if args.limits != "wire":
            try:
                links = BoxedLinks(stack.enter_context(hosts([FREE] * args.parts)))
            except PenstockError as error:
                if args.limits == "namespaces":
                    raise
                print(f"No hosts in a box ({error}): the wire is limited.", file=sys.stderr)
        yield WireLinks(folder, args.parts) if links is None else links


def measure(args: argparse.Namespace, way: str, graph: Path, parts: Path, links: Links, folder: Path) -> None:
    """One run; its line is added to the file."""
    case = {**{name: getattr(args, name) for name in OPTIONS}, "way": way}
    if any(case.items() <= line.items() and "epoch_s" in line for line in read_lines(args.out)):
        return
    name, _, settings = way.partition(":")
    job, transport = split_way(name)
    if share := transport.pop("cached", 0.0):
        transport["remote_cache_mb"] = share * halo_bytes(parts) / (1 << 20)
    machines = [{"name": f"m{n}", "workers": 1, **where} for n, where in enumerate(links.addresses())]
    file = folder / f"{way}.yaml"
    file.write_text(
        yaml.safe_dump({"machines": machines, "partition": str(parts), "wire": {"security": "token"}, **transport})
    )
    split = {"graph": str(graph), "split": "per-class", "per_class": [args.train, 30]}
    steps = -(-training_vertices(split) // args.batch)
    warm = -(-(args.every + args.delay) // steps) + LEFT_OUT
    epochs = warm + args.epochs * (1 + len(args.rates)) + LAST
    fields = {
        **split,
        "run": str(folder / f"run-{way}"),
        "device": "cpu",
        "model": args.model,
        "hidden": args.hidden,
        "batch_size": args.batch,
        "epochs": epochs,
        "evaluate_every": -1,
        "checkpoint_minutes": 0,
        "threads": 1,
        **job,
        **_sampling(args, job),
        **settings_of(settings),
    }
    links.set_rate(FREE)
    began, load = time.monotonic(), os.getloadavg()[0]
    line: dict[str, Any]
    try:
        with links.started(), _at_most(args.case_limit):
            progress = Phases(links, warm, args.rates, args.epochs)
            result = cluster_run.start_cluster_run(job_of(fields), str(file), True, progress).facts["result"]
        line = figures(args, result, steps, warm, epochs)
    except (PenstockError, TimeoutError) as error:
        line = {"error": f"{type(error).__name__}: {error}"}
    line = {**case, "limits": links.kind, **line, "run_s": round(time.monotonic() - began, 1), "load": round(load, 1)}
    with args.out.open("ab", buffering=0) as out:
        out.write((json.dumps(line) + "\n").encode())
    print(json.dumps(line), flush=True)


def _sampling(args: argparse.Namespace, job: dict[str, Any]) -> dict[str, Any]:
    if job.get("sampler") in ("fastgcn", "ladies"):
        return {"fanouts": [args.batch * args.fanout] * args.layers}
    more = {"fanouts": [args.fanout] * args.layers}
    if job.get("sampler") == "explained":
        more |= {"explain_every": args.every, "explain_delay": args.delay}
        more |= {"explain_rows": args.rows, "explain_steps": args.explain_steps}
    return more


def figures(args: argparse.Namespace, result: dict[str, Any], steps: int, warm: int, epochs: int) -> dict[str, Any]:
    """Seconds of an epoch by rate, and the bytes of the whole run."""
    if result["epochs"] < epochs:
        raise PenstockError(f"The run was stopped after {result['epochs']} of {epochs} epochs.", code="interrupted")
    seconds, by_rate = result["epoch_seconds"], {}
    for number, rate in enumerate([FREE, *args.rates]):
        first = warm + number * args.epochs
        by_rate[f"{rate:g}"] = round(statistics.median(seconds[first + LEFT_OUT : first + args.epochs]), 4)
    told = result.get("explanations", {})
    return {
        "epoch_s": by_rate,
        "bytes": result["batch_bytes"],
        "steps": result["steps"],
        "steps_per_epoch": steps,
        "epochs": epochs,
        "plain_steps": args.every + args.delay if told else 0,
        "explanations": {name: told[name] for name in ("made", "waited_s", "processor_seconds") if told},
        "epochs_s": [round(each, 3) for each in seconds],
    }


def summary(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes of an epoch in MB and its seconds, and both as shares of the plain sampler's."""
    rows = []
    known = {
        (*(line[name] for name in OPTIONS), line["limits"], line["way"]): line for line in lines if "bytes" in line
    }
    for line in known.values():
        where = (*(line[name] for name in OPTIONS), line["limits"])
        plain, suffix = known.get((*where, "neighbour")), line["way"].partition("-")[2]
        suffix = "-".join(each for each in suffix.split("-") if each not in ("nodes", "columns"))
        alike = known.get((*where, "-".join(filter(None, ("neighbour", suffix)))))
        row = {**{name: line[name] for name in OPTIONS}, "way": line["way"], "limits": line["limits"]}
        row |= {f"{use}_mb": round(size / 1e6, 3) for use, size in epoch_bytes(line, alike).items()}
        row |= {f"s_at_{rate}": each for rate, each in line["epoch_s"].items()}
        if plain is not None:
            ours, theirs = epoch_bytes(line, alike), epoch_bytes(plain, None)
            row["rows_percent"] = round(100 * (ours["rows"] / theirs["rows"] - 1), 1)
            row["all_percent"] = round(100 * (sum(ours.values()) / sum(theirs.values()) - 1), 1)
            row |= {
                f"faster_at_{rate}": round(plain["epoch_s"][rate] / each, 3) for rate, each in line["epoch_s"].items()
            }
        rows.append(row)
    return rows


def epoch_bytes(line: dict[str, Any], alike: dict[str, Any] | None) -> dict[str, float]:
    """Bytes of an epoch by use; `alike` is the same way without explanations, whose steps come before the first one."""
    found, plain = {}, line["plain_steps"] if alike is not None else 0
    for use in ("rows", "lists", "explanations"):
        before = 0.0 if alike is None or use == "explanations" else plain * alike["bytes"][use] / alike["steps"]
        counted = line["steps"] - (0 if use == "explanations" else plain)
        found[use] = (line["bytes"][use] - before) / counted * line["steps_per_epoch"]
    return found


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a run that takes longer; its tasks end with it."""

    def over(*_: object) -> None:
        raise TimeoutError(f"the run took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--graph", default="amazon-photo")
    parser.add_argument("--train", type=int, default=64, help="training vertices of each class")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--method", default="metis", help="of the partition")
    parser.add_argument("--columns", type=int, default=0, help="of rows; 0: as they are")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--fanout", type=int, default=5, help="of every hop")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--every", type=int, default=30, help="explain_every")
    parser.add_argument("--delay", type=int, default=10, help="explain_delay")
    parser.add_argument("--rows", type=int, default=256, help="explain_rows")
    parser.add_argument("--explain-steps", type=int, default=20)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    parser.add_argument("--rates", type=float, nargs="*", default=[1000.0, 250.0, 100.0, 25.0], help="Mbit/s")
    parser.add_argument("--epochs", type=int, default=4, help="at each rate; the first is left out")
    parser.add_argument("--limits", choices=["auto", "namespaces", "wire"], default="auto")
    parser.add_argument("--case-limit", type=float, default=60.0, help="seconds after which a run is given up")
    parser.add_argument("--out", type=Path, default=Path("slow_links.jsonl"))
    parser.add_argument("--summary", action="store_true", help="only compare what the file has")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
