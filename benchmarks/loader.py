"""How fast is a loop of one's own over `ps.loader`, beside the same loop over PyG's NeighborLoader?

The same PyG modules (GraphSAGE, GATv2, GINE with edge features), the same graph, fan-outs, batches, optimiser and
seed; an epoch is a loop over all training vertices with forward, backward and Adam. Loops take turns, so that both have
the same machine. PyG needs pyg-lib or torch-sparse; of its numbers of worker processes (`--workers`) the fastest
counts. `loop` is an epoch's work without a loader: the same modules on batches that were kept, which no loader can be
faster than. `by layer` (on the CPU) are the same modules called once for each of `batch.blocks`, so that a layer
computes only the rows that the next one reads; PyG's NeighborLoader gives no blocks. Accuracies are of whole-graph
outputs on the validation split. `ps.train` is the same module trained by a run, without a loop of one's own: an epoch
with everything in it.
Run: python benchmarks/loader.py [--device cuda] [--models sage gatv2 gine] [--nodes 100000] [--epochs 3] [--json]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import penstock as ps
from penstock.graph.folder import Graph
from products_graph import BATCH, products, show

WIDTH = 8
"""Numbers that each edge carries."""
BY_LAYER = "penstock, by layer"
TRAINED = "ps.train"


def main() -> None:
    args = arguments()
    with products(args.nodes, args.graph) as graph:
        carry(graph)
        rows = [row for model in args.models for row in measured(graph, model, args)]
    show(f"loops over loaders, {args.device}", rows, args.json)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--graph", type=Path, help="keep the graph in this folder")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3, help="of each loop; the first is not counted")
    parser.add_argument("--sample-on", default="auto", help="who draws the batches of `ps.loader` on a GPU")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2], help="worker processes of PyG's loader")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Net(nn.Module):
    """Two or more layers of PyG's."""

    def __init__(self, layers: list[nn.Module], edges: bool) -> None:
        super().__init__()
        self.layers, self.edges = nn.ModuleList(layers), edges

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Rows of every vertex of the batch."""
        for number, layer in enumerate(self.layers):
            x = layer(x, edge_index, edge_attr) if self.edges else layer(x, edge_index)
            if number < len(self.layers) - 1:
                x = functional.relu(x)
        return x

    def by_layer(self, x: Tensor, blocks: list[Any]) -> Tensor:
        """Rows of the seeds: every layer computes the destination rows of its block."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            ends = torch.from_numpy(np.stack([block.indices, block.destinations()]).astype(np.int64))
            both = x, x[: block.num_dst]
            x = layer(both, ends, block.edge_attr) if self.edges else layer(both, ends)
            if number < len(self.layers) - 1:
                x = functional.relu(x)
        return x


def sage(widths: list[int]) -> Net:
    from torch_geometric.nn import SAGEConv

    return Net([SAGEConv(a, b) for a, b in pairwise(widths)], edges=False)


def gatv2(widths: list[int]) -> Net:
    from torch_geometric.nn import GATv2Conv

    return Net([GATv2Conv(a, b, edge_dim=WIDTH) for a, b in pairwise(widths)], edges=True)


def gine(widths: list[int]) -> Net:
    from torch_geometric.nn import GINEConv

    return Net([GINEConv(nn.Linear(a, b), edge_dim=WIDTH) for a, b in pairwise(widths)], edges=True)


MODELS: dict[str, Callable[[list[int]], Net]] = {"sage": sage, "gatv2": gatv2, "gine": gine}


def carry(graph: Graph) -> None:
    """Give every edge some numbers."""
    (edges,) = graph.edges.values()
    edges.fields["edge_attr"] = np.random.default_rng(0).random((edges.count, WIDTH), np.float32)


def measured(graph: Graph, model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of an epoch of each loop, and what the model has learned."""
    wants_edges = MODELS[model]([1, 1]).edges
    loops: dict[str, Iterable[Any]] = {"penstock": ours(graph, wants_edges, args)}
    if args.device == "cpu":
        loops[BY_LAYER] = ours(graph, wants_edges, args)
    loops |= {f"PyG, {workers} workers": theirs(graph, wants_edges, workers, args) for workers in args.workers}
    nets = {name: made(graph, model, args) for name in loops}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(args.epochs):
        for name, batches in loops.items():
            seconds[name].append(epoch(nets[name], batches, args.device, name == BY_LAYER))
    trained, seconds[TRAINED] = trained_by_a_run(graph, model, wants_edges, args)
    kept = Kept(loops["penstock"])
    seconds["loop"] = [epoch(made(graph, model, args), kept, args.device) for _ in range(2)]
    best = {name: min(each[1:] or each) for name, each in seconds.items()}
    peers = [value for name, value in best.items() if name.startswith("PyG")]
    modules = {name: net.module for name, net in nets.items()} | {TRAINED: trained}
    return [
        {
            "model": model,
            "loop": name,
            "epoch_s": value,
            "times_pyg": min(peers) / value if peers else None,
            "val_accuracy": accuracy(graph, modules[name], args.device) if name in modules else None,
        }
        for name, value in best.items()
    ]


def trained_by_a_run(graph: Graph, model: str, wants_edges: bool, args: argparse.Namespace) -> tuple[Net, list[float]]:
    """The module that a run has trained, and the seconds of its epochs."""
    net = made(graph, model, args).module
    fields: dict[str, Any] = {"edge_features": ["edge_attr"]} if wants_edges else {}
    fields |= {"fanouts": args.fanouts, "batch_size": BATCH, "lr": 0.003, "device": args.device}
    with tempfile.TemporaryDirectory() as scratch:
        run = ps.train(graph, net, **fields, epochs=args.epochs, evaluate_every=-1, run=Path(scratch) / "run")
    return net, run.result["epoch_seconds"]


class Kept:
    """The batches of an epoch, kept on the device: a loop over them waits for nothing."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = list(batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class Trained:
    """A module and its optimiser."""

    def __init__(self, module: Net, device: str) -> None:
        self.module = module.to(device)
        self.optimiser = torch.optim.Adam(self.module.parameters(), lr=0.003)


def made(graph: Graph, model: str, args: argparse.Namespace) -> Trained:
    torch.manual_seed(0)
    classes = int(graph.y.max()) + 1
    hidden = [args.hidden] * (len(args.fanouts) - 1)
    return Trained(MODELS[model]([graph.x.shape[1], *hidden, classes]), args.device)


def ours(graph: Graph, wants_edges: bool, args: argparse.Namespace) -> Iterable[Any]:
    fields: dict[str, Any] = {"edge_features": ["edge_attr"]} if wants_edges else {}
    fields["sample_on"] = args.sample_on
    return ps.loader(graph, "train", fanouts=args.fanouts, batch_size=BATCH, device=args.device, **fields)


def theirs(graph: Graph, wants_edges: bool, workers: int, args: argparse.Namespace) -> Iterable[Any]:
    from torch_geometric.loader import NeighborLoader

    return NeighborLoader(
        as_pyg(graph, wants_edges),
        num_neighbors=args.fanouts,
        input_nodes=torch.from_numpy(np.array(graph.split("train"))),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=args.device != "cpu",
    )


def as_pyg(graph: Graph, wants_edges: bool) -> Any:
    from torch_geometric.data import Data

    (edges,) = graph.edges.values()
    ends = torch.from_numpy(
        np.stack([graph.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))]).astype(np.int64)
    )
    fields = {"edge_attr": torch.from_numpy(np.array(edges.fields["edge_attr"]))} if wants_edges else {}
    labels = torch.from_numpy(np.array(graph.y, np.int64))
    return Data(x=torch.from_numpy(np.array(graph.x, np.float32)), edge_index=ends, y=labels, **fields)


def epoch(net: Trained, batches: Iterable[Any], device: str, by_layer: bool = False) -> float:
    """Seconds of a loop over all batches."""
    net.module.train()
    began = time.perf_counter()
    for batch in batches:
        batch = batch.to(device)
        if by_layer:
            out = net.module.by_layer(batch.x, batch.blocks)
        else:
            out = net.module(batch.x, batch.edge_index, batch.edge_attr if net.module.edges else None)
        loss = functional.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])
        net.optimiser.zero_grad()
        loss.backward()
        net.optimiser.step()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def accuracy(graph: Graph, module: Net, device: str) -> float:
    """Of whole neighbourhoods, on the validation split."""
    data = as_pyg(graph, module.edges).to(device)
    module.eval()
    with torch.no_grad():
        out = module(data.x, data.edge_index, data.edge_attr if module.edges else None).argmax(1)
    rows = torch.from_numpy(np.array(graph.split("val"))).to(device)
    return float((out[rows] == data.y[rows]).float().mean())


if __name__ == "__main__":
    main()
