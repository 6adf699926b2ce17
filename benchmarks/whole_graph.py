"""Full-graph training beside PyG and plain torch.sparse: seconds of an epoch, and the accuracy it comes to.

Two layers, all training vertices in one step, dropout, Adam, float32. Ours is `sampler: whole`. PyG runs on an edge
list and on a sparse adjacency, its faster way. torch.sparse multiplies by the weights first and by the adjacency first.
All run in one process, on the same cores or the same GPU, each for the same number of epochs.
Run: OMP_WAIT_POLICY=passive python benchmarks/whole_graph.py [--device cuda].
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_context import run_context

Epochs = tuple[Callable[[], Any], Callable[[], float]]
"""An epoch to run, and the test accuracy after it."""
MODELS = ("gcn", "sage")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--graphs", nargs="+", default=["synthetic-arxiv"], help="names or files, as `ps.load` takes them"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name in args.graphs:
        graph = with_splits(load(name))
        for model in MODELS:
            for hidden in args.hidden:
                rows += compare(graph, model, hidden, args.epochs, torch.device(args.device))
                if not args.json:
                    for row in rows[-len(WAYS) :]:
                        print(row, flush=True)
    if args.json:
        print(json.dumps(rows))


def with_splits(graph: Graph) -> Graph:
    """The graph with the splits that a job makes, so that every way trains on the same vertices."""
    task: Any = make_session(make_job({"sampler": "whole", "device": "cpu"}), graph).task
    (nodes,) = graph.nodes.values()
    nodes.splits = {name: task.items_of(name) for name in ("train", "val", "test")}
    return graph


def compare(graph: Graph, model: str, hidden: int, epochs: int, device: torch.device) -> list[dict[str, Any]]:
    """One row for each way of training, measured in turn."""
    rows = []
    for way, make in WAYS.items():
        row: dict[str, Any] = {"graph": graph.name, "model": model, "hidden": hidden, "way": way, "epoch_s": None}
        with suppress(torch.OutOfMemoryError):
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            row |= measured(make(graph, model, hidden, device, epochs), epochs, device)
        rows.append(row)
    return rows


def measured(made: Epochs, epochs: int, device: torch.device) -> dict[str, Any]:
    """The median of an epoch's seconds, the first three left out, and the accuracy in the end."""
    epoch, accuracy = made
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        epoch()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    return {
        "epoch_s": statistics.median(seconds[min(3, len(seconds) - 1) :]),
        "first_s": seconds[0],
        "accuracy": accuracy(),
        "peak_mb": peak,
    }


def penstock(graph: Graph, model: str, hidden: int, device: torch.device, epochs: int) -> Epochs:
    """Our own."""
    job = make_job(
        {
            "sampler": "whole",
            "layers": 2,
            "model": model,
            "hidden": hidden,
            "lr": 0.01,
            "device": str(device),
            "epochs": epochs,
        }
    )
    context = run_context(job)
    context.__enter__()
    session = make_session(job, graph)
    schedule = Schedule(session.task.items, session.task.batch_size, job.seed, epochs)
    steps: Iterator[Any] = iter(session.execution.steps(schedule, START, lambda _: 1, lambda *_: None))

    def accuracy() -> float:
        found = session.evaluate(["test"])["test"]["accuracy"]
        context.__exit__(None, None, None)
        return found

    return lambda: next(steps), accuracy


def lists_of(graph: Graph) -> tuple[np.ndarray, np.ndarray, int]:
    (edges,), (nodes,) = graph.edges.values(), graph.nodes.values()
    return np.asarray(edges.indptr), np.asarray(edges.indices), nodes.count


def torch_model(
    graph: Graph, device: torch.device, layers: torch.nn.Module, run: Callable[[torch.Tensor], torch.Tensor]
) -> Epochs:
    """An epoch and the accuracy of layers that `run` applies to the features."""
    (nodes,) = graph.nodes.values()
    x = torch.from_numpy(np.array(nodes.fields["x"], np.float32)).to(device)
    y = torch.from_numpy(np.array(nodes.fields["y"], np.int64)).to(device)
    splits = {name: torch.from_numpy(np.array(rows, np.int64)).to(device) for name, rows in nodes.splits.items()}
    layers.to(device)
    fused = {"fused": True} if device.type == "cuda" else {}
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.01, **fused)

    def epoch() -> None:
        layers.train()
        optimiser.zero_grad()
        functional.cross_entropy(run(x)[splits["train"]], y[splits["train"]]).backward()
        optimiser.step()

    def accuracy() -> float:
        layers.eval()
        with torch.no_grad():
            return float((run(x)[splits["test"]].argmax(1) == y[splits["test"]]).float().mean())

    return epoch, accuracy


def widths(graph: Graph, hidden: int) -> tuple[int, int, int]:
    (nodes,) = graph.nodes.values()
    return nodes.fields["x"].shape[1], hidden, int(np.asarray(nodes.fields["y"]).max()) + 1


def pyg(graph: Graph, model: str, hidden: int, device: torch.device, epochs: int, sparse: bool = False) -> Epochs:
    """PyG's layers on an edge list, or on a sparse adjacency."""
    from torch_geometric.nn import GCNConv, SAGEConv

    indptr, indices, count = lists_of(graph)
    width, inner, out = widths(graph, hidden)
    kind = {"gcn": lambda a, b: GCNConv(a, b, cached=True), "sage": SAGEConv}[model]
    layers = torch.nn.ModuleList([kind(width, inner), kind(inner, out)])
    targets = np.repeat(np.arange(count), np.diff(indptr))
    adjacency: Any = torch.from_numpy(np.stack([indices.astype(np.int64), targets])).to(device)
    if sparse:
        ones = torch.ones(len(indices))
        adjacency = torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(np.int64)), torch.from_numpy(indices.astype(np.int64)), ones, (count, count)
        ).to(device)

    def run(x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(layers[0](x, adjacency).relu(), 0.5, layers.training)
        result: torch.Tensor = layers[1](x, adjacency)
        return result

    return torch_model(graph, device, layers, run)


def plain(graph: Graph, model: str, hidden: int, device: torch.device, epochs: int, transform_first: bool) -> Epochs:
    """torch.sparse and dense products, in one of both orders."""
    indptr, indices, count = lists_of(graph)
    width, inner, out = widths(graph, hidden)
    degree = np.diff(indptr)
    targets = np.repeat(np.arange(count), degree)
    rows, columns = torch.from_numpy(targets), torch.from_numpy(indices.astype(np.int64))
    if model == "gcn":
        rows = torch.cat([rows, torch.arange(count)])
        columns = torch.cat([columns, torch.arange(count)])
        root = torch.from_numpy(1 / np.sqrt(degree + 1.0)).float()
        values = root[rows] * root[columns]
    else:
        values = torch.from_numpy(1 / np.maximum(degree, 1)).float()[rows]
    adjacency = (
        torch.sparse_coo_tensor(torch.stack([rows, columns]), values, (count, count))
        .coalesce()
        .to_sparse_csr()
        .to(device)
    )
    layers = torch.nn.ModuleList([torch.nn.Linear(width, inner), torch.nn.Linear(inner, out)])
    own = torch.nn.ModuleList([torch.nn.Linear(width, inner, bias=False), torch.nn.Linear(inner, out, bias=False)])
    both = (
        torch.nn.ModuleDict({"layers": layers, "own": own})
        if model == "sage"
        else torch.nn.ModuleDict({"layers": layers})
    )

    def layer(number: int, x: torch.Tensor) -> torch.Tensor:
        linear: Any = layers[number]
        if transform_first:
            result = adjacency @ functional.linear(x, linear.weight) + linear.bias
        else:
            result = linear(adjacency @ x)
        return result + own[number](x) if model == "sage" else result

    def run(x: torch.Tensor) -> torch.Tensor:
        return layer(1, functional.dropout(layer(0, x).relu(), 0.5, both.training))

    return torch_model(graph, device, both, run)


WAYS: dict[str, Callable[..., Epochs]] = {
    "penstock": penstock,
    "pyg edge list": pyg,
    "pyg adjacency": lambda *given: pyg(*given, sparse=True),
    "torch A(XW)": lambda *given: plain(*given, transform_first=True),
    "torch (AX)W": lambda *given: plain(*given, transform_first=False),
}

if __name__ == "__main__":
    main()
