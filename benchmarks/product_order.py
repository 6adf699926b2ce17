"""Full-graph GCN in both orders of products, against plain PyTorch in both orders.

    python benchmarks/product_order.py --data DATA [--device cpu|cuda] [--rounds N] [--json]

On cora, citeseer and coauthor-cs (made graphs of their sizes where DATA lacks them) and made graphs of the sizes of
pubmed and physics: a training step of a two-layer GCN of 16 hidden numbers, and single layers that narrow (256 to 16)
and widen (16 to 256), forward and backward. Plain PyTorch multiplies with a sparse CSR matrix. Penstock's step keeps
what never changes of its input, as its runs do; `not kept` computes it anew each time.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from penstock.cost.operators.entry import made_graph
from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.memory import freed_memory_kept
from penstock.nn import GCN, GCNLayer
from penstock.nn.aggregation import constant_input
from penstock.nn.eager import eager
from penstock.sampling import BatchKey, Block, NeighbourSampler
from penstock.sampling.device.block import block_on

HIDDEN, WIDE, NARROW = 16, 256, 16
Step = Callable[[], object]


class Case(NamedTuple):
    """Sizes of a graph: vertices, mean degree, features, share of them that is not zero, classes."""

    nodes: int
    degree: int
    features: int
    density: float
    classes: int


CASES = {
    "cora": Case(2_708, 4, 1_433, 0.0127, 7),
    "citeseer": Case(3_327, 3, 3_703, 0.0085, 6),
    "coauthor-cs": Case(18_333, 9, 6_805, 0.0088, 15),
    "pubmed-size": Case(19_717, 4, 500, 0.1, 3),
    "physics-size": Case(34_493, 14, 8_415, 0.0039, 5),
}


def graph_of(name: str, case: Case, data: Path) -> tuple[Graph, torch.Tensor, torch.Tensor]:
    """A graph with its features and labels."""
    path, rng = data / f"{name}.npz", np.random.default_rng(0)
    if path.exists():
        graph = load(str(path))
        nodes = next(iter(graph.nodes.values()))
        labels = torch.from_numpy(np.maximum(np.asarray(nodes.y), 0).astype(np.int64))
        return graph, torch.from_numpy(np.asarray(nodes.x, np.float32)), labels
    x = torch.zeros(case.nodes, case.features)
    count = int(case.density * x.numel())
    x.view(-1)[torch.from_numpy(rng.integers(0, x.numel(), count))] = 1.0
    return made_graph(case.nodes, case.degree), x, torch.from_numpy(rng.integers(0, case.classes, case.nodes))


def whole_block(graph: Graph) -> Block:
    """All vertices with all of their neighbours."""
    sampler = NeighbourSampler(graph, [-1], totals=True)
    return sampler.sample(np.arange(graph.num_nodes), BatchKey(0, 0, 0)).blocks[0]


def normalised(block: Block, device: torch.device) -> torch.Tensor:
    """GCN's matrix with self loops, as plain PyTorch multiplies with it."""
    count = block.num_dst
    rows = np.concatenate([block.destinations(), np.arange(count)])
    columns = np.concatenate([block.indices, np.arange(count)])
    roots = 1 / np.sqrt(np.asarray(block.totals, np.float64) + 1)
    values = torch.from_numpy((roots[rows] * roots[columns]).astype(np.float32))
    places = torch.from_numpy(np.stack([rows, columns]).astype(np.int64))
    return torch.sparse_coo_tensor(places, values, (count, count)).coalesce().to_sparse_csr().to(device)


def plain_layer(matrix: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, aggregate: bool) -> torch.Tensor:
    return (matrix @ x) @ weight if aggregate else matrix @ (x @ weight)


def plain_step(matrix: torch.Tensor, x: torch.Tensor, y: torch.Tensor, classes: int, aggregate: bool) -> Step:
    """A training step of PyTorch's: both layers in one order."""
    shapes = [(x.shape[1], HIDDEN), (HIDDEN, classes)]
    weights = [torch.nn.init.xavier_uniform_(torch.empty(*s, device=x.device)).requires_grad_() for s in shapes]
    optimiser = eager(torch.optim.Adam)(weights, lr=0.01)

    def step() -> float:
        optimiser.zero_grad(set_to_none=True)
        hidden = torch.relu(plain_layer(matrix, x, weights[0], aggregate))
        loss = functional.cross_entropy(plain_layer(matrix, hidden, weights[1], aggregate), y)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def penstock_step(block: Any, x: torch.Tensor, y: torch.Tensor, classes: int, order: str, kept: bool) -> Step:
    """A training step of Penstock's zoo model on the whole graph."""
    model = GCN(x.shape[1], classes, hidden=HIDDEN, layers=2, dropout=0.0, order=order).to(x.device)
    optimiser = eager(torch.optim.Adam)(model.parameters(), lr=0.01)
    memory: dict[Any, Any] = {}

    def step() -> float:
        optimiser.zero_grad(set_to_none=True)
        with constant_input(memory, [x] if kept else []):
            loss = functional.cross_entropy(model([block, block], x), y)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def layer_steps(matrix: torch.Tensor, block: Any, nodes: int, device: torch.device) -> dict[str, dict[str, Step]]:
    """Single layers that narrow and widen, with gradients of weights and input."""
    found = {}
    for what, (wide, out) in {"narrowing": (WIDE, NARROW), "widening": (NARROW, WIDE)}.items():
        x = torch.ones(nodes, wide, device=device, requires_grad=True)
        weight = torch.ones(wide, out, device=device, requires_grad=True)
        gradient = torch.ones(nodes, out, device=device)
        ways: dict[str, Step] = {}
        for aggregate in (True, False):

            def plain(a: bool = aggregate, x: Any = x, w: Any = weight, g: Any = gradient) -> object:
                return torch.autograd.grad(plain_layer(matrix, x, w, a), [x, w], g)

            ways[f"torch {'aggregate' if aggregate else 'transform'}"] = plain
        for order in ("aggregate", "transform", "auto"):
            layer = GCNLayer(wide, out, bias=False, order=order).to(device)

            def ours(layer: Any = layer, x: Any = x, g: Any = gradient) -> object:
                return torch.autograd.grad(layer(block, x), [x, layer.linear.weight], g)

            ways[f"penstock {order}"] = ours
        found[what] = ways
    return found


def milliseconds(step: Step, rounds: int, device: torch.device) -> float:
    """The shortest of some rounds, after one that warms up."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def rows_of(name: str, data: Path, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """One line for each model on a graph."""
    graph, x, y = graph_of(name, CASES[name], data)
    x, y, classes = x.to(device), y.to(device), int(y.max()) + 1
    whole = whole_block(graph)
    block, matrix = block_on(whole, device), normalised(whole, device)
    cases: dict[str, dict[str, Step]] = {
        "gcn step": {
            "torch aggregate": plain_step(matrix, x, y, classes, True),
            "torch transform": plain_step(matrix, x, y, classes, False),
            "penstock aggregate": penstock_step(block, x, y, classes, "aggregate", False),
            "penstock transform": penstock_step(block, x, y, classes, "transform", False),
            "penstock not kept": penstock_step(block, x, y, classes, "auto", False),
            "penstock auto": penstock_step(block, x, y, classes, "auto", True),
        },
        **layer_steps(matrix, block, len(x), device),
    }
    lines = []
    for what, ways in cases.items():
        times = {way: milliseconds(step, rounds, device) for way, step in ways.items()}
        auto = times["penstock auto"]
        saved = {f"against {way}": 1 - auto / times[f"torch {way}"] for way in ("aggregate", "transform")}
        lines.append({"graph": name, "what": what, **times, **saved})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--graphs", default=",".join(CASES))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    with freed_memory_kept():
        lines = [line for name in asked.graphs.split(",") for line in rows_of(name, asked.data, device, asked.rounds)]
    if asked.json:
        print(json.dumps({"benchmark": "product_order", "device": asked.device, "rows": lines}))
        return
    columns = list(lines[0])
    table = Table(*columns, title="milliseconds for each step", title_justify="left", box=None)
    for line in lines:
        shown = (f"{value:.0%}" if key.startswith("against") else value for key, value in line.items())
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in shown))
    Console(width=190).print(table)


if __name__ == "__main__":
    main()
