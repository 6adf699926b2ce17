"""Can a GPU train on the whole of a graph like ogbn-papers100M at once, and how long is an epoch?

synthetic-papers with both directions and float16 features, GraphSAGE 3x256, one step an epoch over all training
vertices, rows between layers kept in bfloat16; `penstock train --sampler whole`, bins as the run chooses them. Beside
it PyG's SAGEConv on the same graph, on a sparse adjacency (its leaner way) and on an edge list. How busy the GPU is, is
asked every 10 ms. All phases are told with their seconds as they end, and `--lines` writes them at once as lines of
JSON, so that a measurement that runs out of time has told how far it came.
Run: python benchmarks/whole_graph_papers.py [--scales 0.1,0.25,0.5,1] [--job keep=host] [--lines papers.jsonl]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from gpu_runs import (
    HIDDEN,
    NEVER,
    end_children_when_ended,
    given_fields,
    in_a_process,
    made,
    report,
    tell,
    trained_aloud,
)
from penstock.graph.folder import Graph

NAME = "synthetic-papers"
LAYERS = 3
JOB = {"sampler": "whole", "model": "sage", "layers": LAYERS, "hidden": HIDDEN, "keep_type": "bfloat16"}
TIMED = {"evaluate_every": NEVER, "checkpoint_minutes": 0.0}
KEPT = ("bins", "keep", "in_place", "recomputed", "captured", "preparation_s", "epoch_seconds", "predicted_mb")
PEAKS = ("device_peak_mb", "peak_rss_mb", "train_loss")
PEERS = ("adjacency", "edges")


def main() -> None:
    end_children_when_ended()
    args = arguments()
    if args.peer:
        print(peer_row(args.graph, args.peer, args.epochs))
        return
    rows: list[dict[str, Any]] = []

    def note(row: dict[str, Any]) -> None:
        tell(row)
        if args.lines is not None:
            with args.lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    for scale in map(float, args.scales.split(",")):
        folder = args.graph or Path(tempfile.gettempdir()) / f"penstock-papers-{scale:g}"
        began = time.perf_counter()
        graph = made(NAME, folder, scale, symmetric=True, dtype="float16")
        facts = {"scale": scale, "vertices": graph.num_nodes, "edges": graph.num_edges}
        note({**facts, "what": "graph made or opened", "seconds": round(time.perf_counter() - began, 1)})
        del graph
        rows.append({**facts, "what": "penstock", **our_row(folder, args, note)})
        note(rows[-1])
        for peer in [name for name in args.peers.split(",") if name]:
            command = [sys.executable, __file__, "--graph", str(folder), "--peer", peer, "--epochs", str(args.epochs)]
            rows.append({**facts, "what": f"pyg {peer}", **in_a_process(command, args.limit)})
            note(rows[-1])
        if args.graph is None:
            shutil.rmtree(folder)
    report(f"{NAME}, the whole graph in each step", rows, args.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scales", default="0.1")
    parser.add_argument("--graph", type=Path, help="where the graph is, or is made and kept")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=4, help="of a run; the first is not counted")
    parser.add_argument("--peers", default=",".join(PEERS), help="which ways of PyG; empty: none")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--job", action="append", default=[], metavar="NAME=VALUE", help="any other field of the job")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds a run may take")
    parser.add_argument("--lines", type=Path, help="append everything as it becomes known, as lines of JSON")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    return parser.parse_args()


def our_row(folder: Path, args: argparse.Namespace, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Seconds of an epoch, how it was divided, memory as predicted and as measured, and how busy the GPU was."""
    fields = {**JOB, **TIMED, "graph": str(folder), "device": args.device, "epochs": args.epochs}
    with busy_shares() as shares:
        told = {**fields, **given_fields(args.job)}
        result = trained_aloud(told, args.limit, lambda seconds, line: note({"seconds": seconds, "told": line}))
    if "error" in result:
        return result
    seconds = result["epoch_seconds"]
    kept = {name: result[name] for name in KEPT + PEAKS if name in result}
    row = {"first_epoch_s": seconds[0], "epoch_s": statistics.median(seconds[1:] or seconds), **kept}
    return row | {"busy": busy_in(shares, sum(seconds[1:])), "wall_s": result["wall_s"]}


@contextmanager
def busy_shares() -> Iterator[list[tuple[float, float]]]:
    """When the GPU was asked, and the share of the time before in which it computed; empty without a GPU."""
    found: list[tuple[float, float]] = []
    if shutil.which("nvidia-smi") is None:
        yield found
        return
    asked = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "10"]
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None
        found.extend((time.perf_counter(), float(line) / 100) for line in process.stdout if line.strip().isdigit())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.terminate()
        reader.join()


def busy_in(shares: list[tuple[float, float]], seconds: float) -> float | None:
    """The mean share over the busiest stretch of so many seconds: a run's epochs, without what is made ready before."""
    if not shares:
        return None
    times, values = (np.array(column) for column in zip(*shares, strict=True))
    ends = np.searchsorted(times, times + seconds)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means = (sums[ends] - sums[:-1]) / np.maximum(1, ends - np.arange(len(times)))
    whole = times + seconds <= times[-1]
    return round(float(means[whole].max() if whole.any() else values.mean()), 3)


def peer_row(folder: Path, way: str, epochs: int) -> str:
    """PyG's full-graph training of the same model, as JSON: seconds of an epoch, or that memory ran out."""
    try:
        seconds = peer_seconds(Graph.open(folder), way, epochs)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        text = str(error).splitlines()[0].replace('"', "'")
        return f'{{"error": "{text}"}}'
    peak = torch.cuda.max_memory_allocated() / 2**20
    return f'{{"epoch_s": {statistics.median(seconds[1:])}, "device_peak_mb": {peak}}}'


def peer_seconds(graph: Graph, way: str, epochs: int) -> list[float]:
    """Seconds of every epoch, with strict float32 as our own has."""
    from torch_geometric.nn import SAGEConv

    (edges,), (nodes,) = graph.edges.values(), graph.nodes.values()
    x = torch.from_numpy(np.asarray(nodes.fields["x"])).cuda().float()
    y = torch.from_numpy(np.asarray(nodes.fields["y"], np.int64)).cuda()
    train = torch.from_numpy(np.asarray(graph.split("train"), np.int64)).cuda()
    indptr, indices = torch.from_numpy(np.asarray(edges.indptr)).cuda(), torch.from_numpy(np.asarray(edges.indices))
    if way == "edges":
        targets = torch.repeat_interleave(indptr.diff())
        adjacency: Any = torch.stack([indices.cuda().long(), targets])
    else:
        ones = torch.ones(len(indices), device="cuda")
        size = (nodes.count, nodes.count)
        adjacency = torch.sparse_csr_tensor(indptr.long(), indices.cuda().long(), ones, size)
    classes = int(y.max()) + 1
    widths = [x.shape[1], *[HIDDEN] * (LAYERS - 1), classes]
    layers = torch.nn.ModuleList([SAGEConv(a, b) for a, b in pairwise(widths)]).cuda()
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.01, fused=True)
    seconds = []
    for _ in range(epochs):
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimiser.zero_grad()
        hidden = x
        for number, layer in enumerate(layers):
            hidden = layer(hidden, adjacency)
            if number < LAYERS - 1:
                hidden = functional.dropout(hidden.relu(), 0.5)
        functional.cross_entropy(hidden[train], y[train]).backward()
        optimiser.step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
