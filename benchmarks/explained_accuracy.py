"""Sampler explained beside other samplers: accuracy, for every graph, number of parts, T_ex, fan-out and seed.

All ways train the same model from the same first weights on the same split and cut; workers' steps are done in one
process each (in_one_process.py), `--processes` at a time with one thread. Where an archive has several splits, a
seed has its own; one without any is split anew with every seed; one with a single split has it with every seed. Batches
have a twelfth of the training vertices, 32 to 256, and a run has about `--steps` steps. The test metric is that of the
best weights by validation from step `--from-step` on, when explanations are in force with every T_ex: small graphs are
learned before, and the same weights would be compared.

Ways: full (mini-batches of whole neighbourhoods), neighbour, labor, fastgcn, ladies, cluster; neighbour-columns,
fastgcn-columns, ladies-columns, cluster-columns (85 % of the columns of remote rows, at random, others with every
batch); random (as many remote draws and columns as explained, not chosen); explained, which settings may follow:
explained:every=60,share=0.5,bias=0.05. Only the last six depend on parts.

Every run is a line of `--out`, written as it ends, and is not done again when the benchmark is started again with that
file. All ways are compared with the first of `--parts` and of `--fanouts`, neighbour and explained with the others too.
Cases are ordered by seed, so that whatever `--limit` (seconds) cuts off, all graphs have the same seeds but one.
Differences to the plain sampler are paired by seed, with Student's 95 % interval.
Run: python benchmarks/explained_accuracy.py [--data ../shared/data] [--processes 16] [--limit 170] [--seeds 10]
[--parts 2 4 6 8] [--fanouts 5 10] [--ways ...] [--out accuracy.jsonl] [--summary]
"""

import argparse
import fcntl
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from explained import DATA, LAYERS, paired, read_lines, settings_of, training_vertices
from in_one_process import NOTHING_REMOTE, Remote, trained
from penstock.errors import PenstockError
from penstock.partition import Cut, cut
from penstock.train.dataset.prepared_graph import open_data
from penstock.train.job import make_job

GRAPHS = ["cora", "citeseer", "cora-ml", "actor", "amazon-photo", "tolokers"]
SEVERAL_SPLITS = ("actor", "tolokers")
SHARE = 0.85
ANYWHERE = ["full", "neighbour", "labor", "fastgcn", "ladies", "cluster"]
"""Ways that do not depend on how the graph is cut."""
EVERYWHERE = ("neighbour", "explained")
"""Ways that are compared with every number of parts and every fan-out."""
KEYS = ("graph", "parts", "method", "fanout", "way")


def main() -> None:
    args = _options()
    done = read_lines(args.out)
    if not args.summary:
        left = [case for case in cases(args) if not any(case.items() <= line.items() for line in done)]
        _work(args, left)
        done = read_lines(args.out)
    for row in compared(done):
        print(json.dumps(row), flush=True)


def cases(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Seed by seed: all ways with the first numbers of parts and fan-outs, then some of them with the others."""
    places = [(args.parts[0], args.fanouts[0])]
    places += [(parts, args.fanouts[0]) for parts in args.parts[1:]]
    places += [(args.parts[0], fanout) for fanout in args.fanouts[1:]]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for number, (parts, fanout) in enumerate(places):
            for graph in args.graphs:
                for way in args.ways if number == 0 else [way for way in args.ways if way in EVERYWHERE]:
                    anywhere = way in ANYWHERE
                    if anywhere and number and fanout == args.fanouts[0]:
                        continue
                    cut_as = {"parts": 1, "method": ""} if anywhere else {"parts": parts, "method": args.method}
                    yield {"graph": graph, **cut_as, "fanout": fanout, "way": way, "seed": seed}


def _work(args: argparse.Namespace, left: list[dict[str, Any]]) -> None:
    """Processes take one case after the other until none is left or time is over."""
    until = time.monotonic() + args.limit
    context = multiprocessing.get_context("fork")
    next_case = context.Value("i", 0)
    with tempfile.TemporaryDirectory() as scratch:
        given = args, left, next_case, until, Path(scratch)
        processes = [context.Process(target=_take_cases, args=given, daemon=True) for _ in range(args.processes)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, until + 1 - time.monotonic()))
        for process in processes:
            if process.is_alive():
                # What it was about is not written, and is done the next time.
                process.terminate()
            process.join()


def _take_cases(
    args: argparse.Namespace, left: list[dict[str, Any]], next_case: Any, until: float, scratch: Path
) -> None:
    torch.set_num_threads(1)
    place = Place(args, scratch)
    while time.monotonic() < until:
        with next_case.get_lock():
            number = next_case.value
            next_case.value += 1
        if number >= len(left):
            return
        began = time.process_time()
        try:
            found = place.run(left[number])
        except PenstockError as error:
            found = {"error": str(error)}
        line = json.dumps({**left[number], **found, "processor_s": round(time.process_time() - began, 2)}) + "\n"
        with args.out.open("ab", buffering=0) as file:
            file.write(line.encode())


class Place:
    """Where all processes keep graphs and their parts."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        """Train one case; the test metric and the share of remote rows."""
        graph, parts = self._graph(case), None
        fields, remote = self._job(case, graph)
        if case["parts"] > 1:
            parts = self._made(
                f"{graph.name}-{case['method']}-{case['parts']}",
                lambda to: cut(open_graph(graph), Cut(case["parts"], 1, case["method"], seed=case["seed"]), to),
            )
        found = trained(fields, parts, remote, self._args.from_step)
        return {
            "test": round(found["test"], 5),
            "steps": len(found["losses"]),
            "best_step": found["best_step"],
            "loss": round(found["losses"][-1], 5),
            "remote_share": round(found["remote_rows"] / max(1, found["rows"]), 4),
            "remote_rows": found["remote_rows"],
        }

    def _graph(self, case: dict[str, Any]) -> Path:
        fields: dict[str, Any] = {"graph": str(self._args.data / f"{case['graph']}.npz"), "seed": case["seed"]}
        if case["graph"] in SEVERAL_SPLITS:
            fields["split_number"] = case["seed"] % 10
        return self._made(f"{case['graph']}-{case['seed']}", lambda to: open_data(make_job(fields)).save(to))

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        """What the first process that needs it makes, while the others wait."""
        path = self._folder / name
        with (self._folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                make(path)
        return path

    def _job(self, case: dict[str, Any], graph: Path) -> tuple[dict[str, Any], Remote]:
        name, _, settings = case["way"].partition(":")
        train = training_vertices({"graph": str(graph), "seed": case["seed"]})
        batch = min(256, max(32, train // 12))
        batches = -(-train // batch)
        epochs = max(1, round(self._args.steps / batches))
        fields: dict[str, Any] = {
            "graph": str(graph),
            "device": "cpu",
            "model": self._args.model,
            "hidden": 64,
            "batch_size": batch,
            "epochs": epochs,
            "evaluate_every": max(1, epochs // 10),
            "dropout": 0.5,
            "lr": 0.01,
            "threads": 1,
            "seed": case["seed"],
        }
        sampler = name.removesuffix("-columns")
        if sampler in ("fastgcn", "ladies"):
            fields |= {"sampler": sampler, "fanouts": [batch * case["fanout"]] * LAYERS}
        elif sampler == "cluster":
            fields |= {"sampler": sampler, "clusters": 2 * batches, "batch_size": 2, "layers": LAYERS}
        else:
            fields["fanouts"] = [-1 if sampler == "full" else case["fanout"]] * LAYERS
        if sampler == "labor":
            fields["sampler"] = sampler
        if sampler in ("explained", "random"):
            fields |= {"explain_rows": self._args.rows, "explain_steps": self._args.explain_steps}
            fields |= settings_of(settings)
            return fields, Remote(True, "random" if sampler == "random" else "found")
        return fields, Remote(columns=SHARE) if name.endswith("-columns") else NOTHING_REMOTE


def open_graph(path: Path) -> Any:
    """A graph folder."""
    return open_data(make_job({"graph": str(path)}))


def compared(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case and way: the mean, and the paired difference to the plain sampler, in points.

    Of all graphs together too, where every graph and seed is a pair.
    """
    lines = [line for line in lines if "test" in line]
    plain = {(line["graph"], line["fanout"], line["seed"]): line for line in lines if line["way"] == "neighbour"}
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        for graph in (line["graph"], "all graphs"):
            grouped.setdefault((graph, *(line[key] for key in KEYS[1:])), []).append(line)
    rows = []
    for case, found in sorted(grouped.items(), key=str):
        row: dict[str, Any] = dict(zip(KEYS, case, strict=True)) | {"seeds": len(found)}
        row["test"] = round(100 * statistics.mean(line["test"] for line in found), 2)
        row["processor_s"] = round(statistics.mean(line["processor_s"] for line in found), 2)
        pairs = [
            100 * (line["test"] - plain[line["graph"], line["fanout"], line["seed"]]["test"])
            for line in found
            if (line["graph"], line["fanout"], line["seed"]) in plain
        ]
        if pairs and row["way"] != "neighbour":
            row["difference"], row["interval"] = paired(pairs)
        rows.append(row)
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--parts", type=int, nargs="+", default=[4, 8, 2, 6])
    parser.add_argument("--fanouts", type=int, nargs="+", default=[5, 10], help="the same number for both hops")
    parser.add_argument("--method", default="metis", help="of the partition")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--ways",
        nargs="+",
        default=[
            *("neighbour", "explained", "full", "labor", "fastgcn", "ladies", "cluster", "random"),
            *("fastgcn-columns", "ladies-columns", "cluster-columns", "explained:every=60", "explained:every=90"),
        ],
    )
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--from-step", type=int, default=100)
    parser.add_argument("--rows", type=int, default=256, help="explain_rows")
    parser.add_argument("--explain-steps", type=int, default=20)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which no further run is started")
    parser.add_argument("--out", type=Path, default=Path("explained_accuracy.jsonl"))
    parser.add_argument("--summary", action="store_true", help="only compare what the file has")
    return parser.parse_args()


if __name__ == "__main__":
    main()
