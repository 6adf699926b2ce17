"""A job's memory as it is predicted before it runs, beside what it took: on a GPU or on the host.

On a GPU the measures are `torch.cuda.max_memory_allocated` and `max_memory_reserved` over a whole run with its
validations. Cases share one process, which empties torch's caches and frees the workspaces of matrix libraries between
them, or have a process each (--fresh). On the host each case is trained in a process of its own, and the measure is
what a process takes by itself and the growth of its resident memory; both growths, predicted and measured, stand in
brackets.

Results are written after every case. Cases that are in the file already are left out, so that calls of a few minutes
each go on where the last one stopped; --slice takes some of all cases, and --merge adds the results of other files.

Run: python benchmarks/memory_forecast.py --device cuda [--models sage gat] [--layers 2 4] [--graphs arxiv-like]
     [--samplers neighbour whole] [--modules] [--fresh] [--slice 20:40] [--seconds 240] [--json results.json]
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.graph.convert import load
from penstock.graph.csr import build_lists
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.memory import HOST_PEAK, resident_mb
from penstock.trace.kernel_rates import measure_kernel_rates
from penstock.trace.libraries import measure_libraries
from penstock.train.job import Job, make_job
from penstock.train.memory.forecast import forecast
from penstock.train.run import start_run

MODELS = ("gcn", "sage", "gat", "gin", "rgcn")
LAYERS = (2, 3, 4, 6, 8, 10)
SAMPLERS = ("neighbour", "whole", "cluster")
SYNTHETIC = {
    "cora-like": (2_708, 10_556, 1_433),
    "photo-like": (7_650, 238_162, 745),
    "flickr-like": (89_250, 899_756, 500),
    "arxiv-like": (169_343, 2_315_598, 128),
    "dense": (40_000, 8_000_000, 64),
    "products-like": (600_000, 15_000_000, 100),
}
"""Vertices, edges and features of made graphs."""
MOST_CLUSTERED = 3_000_000
CLASSES = 20
HELD_OUT = (
    ("twitch-de", "sage", "neighbour", 2, 128, 512),
    ("cora-ml", "gcn", "neighbour", 2, 64, 256),
    ("actor", "gat", "neighbour", 2, 32, 1024),
    ("tolokers", "sage", "neighbour", 4, 256, 1024),
    ("citeseer", "gcn", "whole", 2, 64, 1024),
    ("twitch-engb", "gin", "neighbour", 2, 256, 2048),
    ("minesweeper", "gat", "whole", 3, 128, 1024),
    ("hetero-dblp", "rgcn", "neighbour", 2, 64, 512),
    ("coauthor-cs", "sage", "neighbour", 2, 64, 512),
    ("amazon-photo", "gcn", "labor", 2, 256, 512),
    ("facebook-pagepage", "gat", "saint-walk", 2, 64, 512),
    ("actor", "gin", "cluster", 2, 128, 2),
    ("coauthor-cs", "gcn", "whole", 2, 64, 1024),
    ("tolokers", "gat", "whole", 3, 64, 1024),
    ("facebook-pagepage", "sage", "labor", 3, 128, 1024),
    ("hetero-dblp", "sage", "neighbour", 3, 128, 256),
    ("citeseer", "sage", "neighbour", 2, 64, 256, "link-prediction"),
    ("amazon-photo", "gin", "whole", 3, 128, 1024),
    ("cora", "gat", "saint-vertex", 2, 64, 512),
    ("amazon-photo", "sage", "saint-edge", 2, 128, 512),
    ("cora-ml", "gatv2", "neighbour", 2, 128, 512),
    ("facebook-pagepage", "gcn", "whole", 2, 128, 1024),
    ("twitch-de", "gin", "labor", 2, 64, 256),
    ("twitch-engb", "sage", "whole", 2, 64, 1024),
    ("tolokers", "gcn", "cluster", 3, 128, 2),
    ("minesweeper", "sage", "neighbour", 3, 256, 512),
    ("coauthor-cs", "gat", "labor", 2, 32, 256),
    ("cora", "sage", "neighbour", 2, 128, 512, "link-prediction"),
    ("hetero-dblp", "rgcn", "whole", 2, 32, 1024),
    ("facebook-pagepage", "gin", "saint-edge", 2, 128, 1024),
    ("actor", "gcn", "labor", 3, 512, 1024),
    ("deezer-hu", "sage", "neighbour", 2, 64, 1024, "link-prediction"),
)
"""Jobs that nothing is fitted to: graph, model, sampler, layers, hidden, batch size and task. The terms of forecasts
were found with the first eight and then with the first eighteen; the last fourteen were chosen before they were
measured.
"""
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PYG_MODULES = ("GCN", "GraphSAGE", "GAT", "GIN", "PNA")


def main() -> None:
    args = parsed()
    if args.case is not None:
        print(json.dumps(APART[args.do](json.loads(args.case))))
        return
    if args.device == "cuda":
        # By a process of its own where cases have theirs: this one then never uses the GPU.
        apart("calibrate", {}) if args.fresh else calibrated({})
    began, rows = time.perf_counter(), known_rows(args)
    known = {key_of(row) for row in rows}
    print(HEADER)
    for row in rows:
        print(line_of(row))
    start, _, stop = args.slice.partition(":")
    for case in islice(cases(args), int(start or 0), int(stop) if stop else None):
        if key_of({**case, "device": args.device}) in known:
            continue
        if time.perf_counter() - began > args.seconds:
            print(f"Stopped after {args.seconds} s, {len(rows)} cases done.")
            break
        rows.append(apart(f"compare-{args.device}", case) if args.fresh else compared(case, args.device))
        print(line_of(rows[-1]), flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(rows, indent=1))
    print(summary(rows))


def known_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Results of earlier calls; of a case that was measured twice, the later."""
    files = [Path(each) for each in [*args.merge, *([args.json] if args.json else [])]]
    found = {key_of(row): row for file in files if file.exists() for row in json.loads(file.read_text())}
    return list(found.values())


def key_of(row: dict[str, Any]) -> str:
    """What tells a case from all others."""
    return json.dumps({name: row[name] for name in sorted(row) if name in _ASKED})


_ASKED = ("device", "graph", "model", "module", "sampler", "layers", "hidden", "batch_size", "task", "epochs")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--held-out", action="store_true", help="the jobs of HELD_OUT, which nothing is fitted to")
    parser.add_argument("--layers", type=int, nargs="+", default=list(LAYERS))
    parser.add_argument("--graphs", nargs="+", default=list(SYNTHETIC), help="made graphs, or names or files to load")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS))
    parser.add_argument("--modules", action="store_true", help="five models of PyG as modules of the user's own, too")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no case is started after so many")
    parser.add_argument(
        "--json", default=None, help="a file for the results; cases that it holds are not measured again"
    )
    parser.add_argument("--merge", nargs="*", default=[], help="files of other calls, whose results are added")
    parser.add_argument("--slice", default=":", metavar="FROM:TO", help="only these of all cases, counted from 0")
    parser.add_argument("--fresh", action="store_true", help="each case in a process of its own")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="further fields of every job")
    parser.add_argument("--case", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--do", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def cases(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All that were asked for, small graphs first."""
    further = dict(each.split("=", 1) for each in args.set)
    fields = {"hidden": args.hidden, "batch_size": args.batch_size, "epochs": args.epochs, **further}
    if args.held_out:
        names = ("graph", "model", "sampler", "layers", "hidden", "batch_size", "task")
        # Those without a task classify vertices.
        yield from ({**dict(zip(names, each, strict=False)), "epochs": args.epochs, **further} for each in HELD_OUT)
        return
    for graph in args.graphs:
        for model in args.models:
            for sampler in args.samplers:
                if sampler == "cluster" and (model == "rgcn" or SYNTHETIC.get(graph, (0, 0))[1] > MOST_CLUSTERED):
                    # It is for graphs of one type, and METIS takes minutes for large ones.
                    continue
                for layers in args.layers:
                    yield {"graph": graph, "model": model, "sampler": sampler, "layers": layers, **fields}
        if args.modules:
            for module in PYG_MODULES:
                yield {"graph": graph, "module": module, "sampler": "neighbour", "layers": 3, **fields}


def job_of(case: dict[str, Any], device: str, run: str | None = None) -> Job:
    fields = {name: value for name, value in case.items() if name not in ("graph", "module")}
    layers = fields["layers"]
    if fields["sampler"] in ("neighbour", "labor"):
        # Wide hops first, and narrow ones where there are many.
        fields["fanouts"] = [max(1, 10 >> (2 * place)) for place in range(layers)]
    if fields.get("model") in ("gat", "gatv2"):
        fields["heads"] = 4
    return make_job({**fields, "graph": "benchmark (in memory)", "device": device, "run": run})


GRAPHS: dict[str, Graph] = {}


def graph_of(case: dict[str, Any]) -> Graph:
    """The case's graph, of several types where its model needs that; the last one is kept."""
    typed = case.get("model") == "rgcn"
    key = f"{case['graph']}{' typed' if typed else ''}"
    if key not in GRAPHS:
        GRAPHS.clear()
        if case["graph"] in SYNTHETIC:
            made = typed_graph if typed else plain_graph
            GRAPHS[key] = made(case["graph"], *SYNTHETIC[case["graph"]])
        else:
            file = DATA / f"{case['graph']}.npz"
            GRAPHS[key] = load(str(file) if file.exists() else case["graph"])
    return GRAPHS[key]


def plain_graph(name: str, count: int, edges: int, width: int) -> Graph:
    rng = np.random.default_rng(0)
    nodes = labelled(rng, count, width)
    return Graph({"node": nodes}, {("node", "to", "node"): lists(rng, count, count, edges)}, name)


def typed_graph(name: str, count: int, edges: int, width: int) -> Graph:
    """Two thirds of the vertices are of one type, with labels, and the others of a second; three relations."""
    rng = np.random.default_rng(0)
    first, second = 2 * count // 3, count // 3
    nodes = {"paper": labelled(rng, first, width), "author": labelled(rng, second, width, False)}
    kinds = {
        ("paper", "cites", "paper"): lists(rng, first, first, edges // 2),
        ("author", "writes", "paper"): lists(rng, second, first, edges // 4),
        ("paper", "by", "author"): lists(rng, first, second, edges // 4),
    }
    return Graph(nodes, kinds, f"{name} typed")


def labelled(rng: np.random.Generator, count: int, width: int, labels: bool = True) -> NodeSet:
    fields: dict[str, Any] = {"x": rng.standard_normal((count, width), np.float32)}
    if not labels:
        return NodeSet(count, fields)
    fields["y"] = rng.integers(0, CLASSES, count)
    order = rng.permutation(count)
    parts = np.split(order, [int(0.5 * count), int(0.6 * count), int(0.8 * count)])
    splits = {name: np.sort(part) for name, part in zip(("train", "val", "test"), parts[:3], strict=True)}
    return NodeSet(count, fields, splits)


def lists(rng: np.random.Generator, sources: int, targets: int, edges: int) -> EdgeSet:
    """Edges whose sources are mostly hubs."""
    hubs = (sources * rng.random(edges, np.float32) ** 2.5).astype(np.int64)
    indptr, indices, _ = build_lists(hubs, rng.integers(0, targets, edges), sources, targets)
    return EdgeSet(indptr, indices)


def module_of(case: dict[str, Any], graph: Graph) -> torch.nn.Module | None:
    """A model of PyG, where the case is about one."""
    if "module" not in case:
        return None
    from torch_geometric.nn import models

    (nodes,) = graph.nodes.values()
    more: dict[str, Any] = {}
    if case["module"] == "PNA":
        more = {"aggregators": ["mean", "max"], "scalers": ["identity", "linear"], "deg": torch.ones(16).long()}
    kind = getattr(models, case["module"])
    return kind(nodes.fields["x"].shape[1], case["hidden"], case["layers"], CLASSES, **more)


def compared(case: dict[str, Any], device: str) -> dict[str, Any]:
    """One case, predicted and then measured."""
    graph = graph_of(case)
    found: dict[str, Any] = {**case, "device": device}
    try:
        predicted = forecast(job_of(case, device), graph, device=device, module=module_of(case, graph))
        found |= {"method": predicted.method, "reason": predicted.reason, "seconds": predicted.seconds}
        found |= {"moment": predicted.moment, "categories": predicted.categories}
        if device == "cuda":
            found |= {"predicted": predicted.device_allocated, "predicted_reserved": predicted.device_reserved}
            found |= measured_on_device(case, graph)
        else:
            process = predicted.host_categories["process"]
            grown = apart("host", case)["grown"]
            found |= {"predicted": predicted.host, "measured": process + grown}
            found |= {"predicted_growth": predicted.host - process, "measured_growth": grown}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return found


def measured_on_device(case: dict[str, Any], graph: Graph) -> dict[str, Any]:
    """A whole run in this process, from empty caches."""
    module = module_of(case, graph)
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    # torch hands 32 streams out in turn. If the one that records stayed, a later run could get it a second time, and
    # would save a workspace; so each run takes its streams one after the other.
    torch.cuda.graphs.graph.default_capture_stream = None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    peaks = WholeRunPeaks()
    with tempfile.TemporaryDirectory() as folder, peaks:
        start_run(job_of(case, "cuda", str(Path(folder) / "run")), graph, module)
    del module
    measured = {"measured": peaks.allocated - before, "measured_reserved": peaks.reserved}
    return {**measured, "run_seconds": round(time.perf_counter() - began, 2)}


class WholeRunPeaks:
    """The peaks of a whole run, although the run starts torch's counters again for its own measurements."""

    def __enter__(self) -> "WholeRunPeaks":
        self.allocated = self.reserved = 0
        self._reset = torch.cuda.reset_peak_memory_stats

        def reset(*given: Any) -> None:
            self._note()
            self._reset(*given)

        torch.cuda.reset_peak_memory_stats = reset
        return self

    def __exit__(self, *_: object) -> None:
        self._note()
        torch.cuda.reset_peak_memory_stats = self._reset

    def _note(self) -> None:
        self.allocated = max(self.allocated, torch.cuda.max_memory_allocated())
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())


def apart(what: str, case: dict[str, Any]) -> dict[str, Any]:
    """Something of `APART`, done in a process of its own."""
    command = [sys.executable, __file__, "--do", what, "--case", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if what == "host":
            raise RuntimeError(said)
        return {**case, "device": what.rpartition("-")[2], "error": said[:300]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def calibrated(case: dict[str, Any]) -> dict[str, Any]:
    """Measure what libraries take on this GPU and how fast it is, unless that is known."""
    measure_libraries(torch.device("cuda"))
    measure_kernel_rates()
    return {}


def measured_on_host(case: dict[str, Any]) -> dict[str, Any]:
    """Growth of this process over one that has trained a tiny graph in the same way, with the graph mapped from
    files.
    """
    from penstock.train.memory.process_memory import main as tiny

    if "module" in case:
        # A user's process has the library of its modules before it asks.
        import torch_geometric.nn  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        # The graph is made by a process of its own, whose memory is not ours.
        made = subprocess.run(
            [sys.executable, "-c", _SAVE.format(file=__file__, case=case, folder=f"{folder}/graph")], check=True
        )
        assert made.returncode == 0
        tiny(case["sampler"])
        before, peak = resident_mb(), HOST_PEAK.measure()
        graph = Graph.open(Path(folder) / "graph")
        start_run(job_of(case, "cpu", f"{folder}/run"), graph, module_of(case, graph))
        return {"grown": int((peak.read() - before) * (1 << 20))}


APART: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "host": measured_on_host,
    "calibrate": calibrated,
    "compare-cuda": lambda case: compared(case, "cuda"),
    "compare-cpu": lambda case: compared(case, "cpu"),
}
"""What is done in processes of their own."""
_SAVE = """
import runpy
names = runpy.run_path({file!r})
names["graph_of"]({case!r}).save({folder!r})
"""
HEADER = f"{'case':52} {'predicted':>11} {'measured':>11} {'error':>8} {'reserved':>9} {'method':>7} {'s':>6}"


def line_of(row: dict[str, Any]) -> str:
    name = f"{row['graph']} {row.get('module') or row['model']} {row['sampler']} {row['layers']}"
    if "error" in row:
        return f"{name:52} {row['error']}"
    reserved = f"{100 * error_of(row, '_reserved'):+8.2f}%" if "measured_reserved" in row else ""
    if "measured_growth" in row:
        name += f" (+{row['predicted_growth'] / 1e6:.0f}, +{row['measured_growth'] / 1e6:.0f})"
    sizes = f"{row['predicted'] / 1e6:9,.1f}MB {row['measured'] / 1e6:9,.1f}MB {100 * error_of(row):+7.2f}%"
    return f"{name:52} {sizes} {reserved:>9} {row['method']:>7} {row['seconds']:6.2f}"


def error_of(row: dict[str, Any], which: str = "") -> float:
    return float(row[f"predicted{which}"] / max(1, row[f"measured{which}"]) - 1)


def summary(rows: list[dict[str, Any]]) -> str:
    """How far off predictions were."""
    done = [row for row in rows if "error" not in row]
    if not done:
        return "No case was measured."
    errors = [error_of(row) for row in done]
    large = [error_of(row) for row in done if row["measured"] > 1e9]
    parts = [
        f"{len(done)} cases of {len(rows)}: within 3 %: {sum(abs(each) <= 0.03 for each in errors)}, within 5 %:"
        f" {sum(abs(each) <= 0.05 for each in errors)}",
        f"largest error {100 * max(errors, key=abs):+.2f} %, furthest below {100 * min(errors):+.2f} %",
        f"above 1 GB ({len(large)}): largest {100 * max(large, key=abs):+.2f} %" if large else "none above 1 GB",
        f"a prediction takes {np.median([row['seconds'] for row in done]):.2f} s in the median",
    ]
    return "; ".join(parts) + "."


if __name__ == "__main__":
    main()
