"""Can the synthetic labels be learnt from the graph, and not from features alone?

Trains an MLP and a 2-layer GraphSAGE (mean), both plain torch and full batch, on one data set and prints test
accuracies. Run: python benchmarks/learnability.py [--dataset synthetic-arxiv] [--scale 1] [--epochs 60]
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from penstock.graph.folder import Graph
from penstock.graph.generate import DEFAULT, make_graph, recipe_named


def accuracies(graph: Graph, epochs: int, hidden: int = 128, seed: int = 0) -> dict[str, float]:
    """Test accuracy of both models, in percent, at the epoch with the best validation accuracy."""
    x, y = torch.from_numpy(np.array(graph.x, np.float32)), torch.from_numpy(np.array(graph.y))
    splits = {name: torch.from_numpy(np.array(graph.split(name))) for name in ("train", "val", "test")}
    mean = mean_matrix(graph)
    classes = int(y.max()) + 1
    found = {}
    for name, width in (("mlp", 1), ("graphsage", 2)):
        torch.manual_seed(seed)
        first = torch.nn.Linear(width * x.shape[1], hidden)
        second = torch.nn.Linear(width * hidden, classes)
        found[name] = _train(first, second, mean if name == "graphsage" else None, x, y, splits, epochs)
    return found


def mean_matrix(graph: Graph) -> torch.Tensor:
    """Row-normalised in-adjacency."""
    lengths = np.diff(graph.indptr)
    values = np.repeat(1.0 / np.maximum(lengths, 1), lengths).astype(np.float32)
    with warnings.catch_warnings():
        # torch warns once that CSR tensors are a beta feature.
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(np.array(graph.indptr)),
            torch.from_numpy(np.array(graph.indices, np.int64)),
            torch.from_numpy(values),
            (graph.num_nodes, graph.num_nodes),
            check_invariants=True,
        )


def _train(
    first: torch.nn.Linear,
    second: torch.nn.Linear,
    mean: torch.Tensor | None,
    x: torch.Tensor,
    y: torch.Tensor,
    splits: dict[str, torch.Tensor],
    epochs: int,
) -> float:
    def with_neighbours(h: torch.Tensor) -> torch.Tensor:
        return h if mean is None else torch.cat([h, mean @ h], 1)

    inputs = with_neighbours(x)
    optimiser = torch.optim.Adam([*first.parameters(), *second.parameters()], 0.01, weight_decay=1e-4)
    best, at_best = -1.0, 0.0
    for _ in range(epochs):
        optimiser.zero_grad()
        hidden = torch.nn.functional.dropout(torch.relu(first(inputs)), 0.5)
        logits = second(with_neighbours(hidden))
        torch.nn.functional.cross_entropy(logits[splits["train"]], y[splits["train"]]).backward()
        optimiser.step()
        with torch.no_grad():
            right = (second(with_neighbours(torch.relu(first(inputs)))).argmax(1) == y).float()
        val, test = (100 * right[splits[name]].mean().item() for name in ("val", "test"))
        if val > best:
            best, at_best = val, test
    return at_best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default=DEFAULT)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--json-out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        graph = make_graph(recipe_named(args.dataset).scaled(args.scale), Path(folder) / "graph")
        start = time.perf_counter()
        row = {"dataset": args.dataset, "scale": args.scale, **accuracies(graph, args.epochs)}
        row["seconds"] = round(time.perf_counter() - start, 1)
    table = Table("data set", "scale", "MLP", "GraphSAGE", "gap (points)")
    gap = row["graphsage"] - row["mlp"]
    table.add_row(args.dataset, f"{args.scale:g}", f"{row['mlp']:.1f}", f"{row['graphsage']:.1f}", f"{gap:.1f}")
    Console().print(table)
    if args.json_out:
        args.json_out.write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
