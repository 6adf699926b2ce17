"""The products job by other means, one a process: what our steps on a GPU are measured against.

dgl     DGL's NeighborSampler in worker processes, as its guide recommends; features wait on the device, and PyG's
        SAGEConv computes a block a layer (DGL's public wheel has no CUDA, so blocks travel as edge lists).
naive   a sampler of plain torch operations on the device, drawing with repetition, before the same layers.
pyg     PyG's SAGEConv, forward, backward and Adam, again and again on one batch of ours as PyG's loader gives it.
blocks  the same, a block a layer: no sampling, no gathering.
Run: python benchmarks/gpu_peers.py dgl --graph FOLDER [--device cuda]; prints one JSON object.
"""

import argparse
import importlib.util
import json
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpu_runs import BATCH, FANOUTS, HIDDEN, tell
from penstock.cost.throughput import seed_batches
from penstock.graph.folder import Graph
from penstock.sampling import BatchKey, MiniBatch, NeighbourSampler

UNPACKED = Path(__file__).parents[1] / ".gpu" / "dgl"
"""Where DGL's wheel may lie unpacked."""
Edges = list[tuple[Tensor, int]]
"""For every layer, outermost first: [2, edges], and how many rows it writes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batches", type=int, default=192, help="batches timed, behind those that warm up")
    parser.add_argument("--warm-up", type=int, default=40)
    parser.add_argument("--workers", type=int, default=16, help="processes that sample for DGL")
    args = parser.parse_args()
    step, count = PEERS[args.peer](Peer(Graph.open(args.graph), torch.device(args.device)), args)
    for _ in range(min(args.warm_up, count - 1)):
        step()
    synchronise(args.device)
    began, left = time.perf_counter(), count - min(args.warm_up, count - 1)
    for _ in range(left):
        loss = step()
    synchronise(args.device)
    seconds = time.perf_counter() - began
    print(json.dumps({"what": args.peer, "batches": left, "batches_per_second": left / seconds, "loss": float(loss)}))


class Peer:
    """Features and labels on the device, three SAGEConv and Adam."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        from torch_geometric.nn import SAGEConv

        torch.manual_seed(0)
        self.graph, self.device = graph, device
        self.x = torch.from_numpy(np.array(graph.x)).to(device)
        self.y = torch.from_numpy(np.array(graph.y, np.int64)).to(device)
        widths = [self.x.shape[1], HIDDEN, HIDDEN, int(self.y.max()) + 1]
        self.layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths)).to(device)
        self.optimiser = torch.optim.Adam(self.layers.parameters(), lr=0.003)
        tell("  graph and model are on the device")

    def step(self, x: Tensor, edges: Edges, labels: Tensor) -> Tensor:
        """Forward, backward and Adam; the loss stays on the device."""
        self.optimiser.zero_grad(set_to_none=True)
        for number, (layer, (ends, rows)) in enumerate(zip(self.layers, edges, strict=True)):
            x = layer((x, x[:rows]), ends)
            if number < len(self.layers) - 1:
                x = functional.dropout(functional.relu(x), 0.5, True)
        loss = functional.cross_entropy(x[: len(labels)], labels)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def seeds(self) -> Iterator[Tensor]:
        """Batches of training vertices on the device, epoch after epoch."""
        rows = torch.from_numpy(np.array(self.graph.split("train"), np.int64)).to(self.device)
        while True:
            order = rows[torch.randperm(len(rows), device=self.device)]
            yield from (each for each in order.split(BATCH) if len(each) == BATCH or len(order) < BATCH)

    def batch(self) -> MiniBatch:
        """One batch as we sample it."""
        return NeighbourSampler(self.graph, FANOUTS).sample(seed_batches(self.graph, BATCH, 1)[0], BatchKey(0, 0, 0))


def dgl_peer(peer: Peer, args: argparse.Namespace) -> tuple[Callable[[], Tensor], int]:
    """DGL samples in worker processes; fan-outs are listed from the outermost layer there."""
    dgl = imported_dgl()
    indptr, indices = (torch.from_numpy(np.array(each, np.int64)) for each in (peer.graph.indptr, peer.graph.indices))
    graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=torch.int64)))).formats("csc")
    loader = dgl.dataloading.DataLoader(
        graph,
        torch.from_numpy(np.array(peer.graph.split("train"), np.int64)),
        dgl.dataloading.NeighborSampler(FANOUTS[::-1]),
        batch_size=BATCH,
        shuffle=True,
        num_workers=args.workers,
    )
    batches = iter(loader)
    tell(f"  DGL {dgl.__version__} samples in {args.workers} processes")

    def step() -> Tensor:
        inputs, outputs, blocks = next(batches)
        edges = [(torch.stack(block.edges()).to(peer.device), block.num_dst_nodes()) for block in blocks]
        return peer.step(peer.x[inputs.to(peer.device)], edges, peer.y[outputs.to(peer.device)])

    return step, min(len(loader), args.warm_up + args.batches)


def imported_dgl() -> Any:
    """DGL beside a torch that it was not built for: its newer loader, which needs that, is left out."""
    if importlib.util.find_spec("dgl") is None and UNPACKED.is_dir():
        sys.path.append(str(UNPACKED))
    sys.modules["dgl.graphbolt"] = types.ModuleType("dgl.graphbolt")
    if importlib.util.find_spec("pandas") is None:
        # Some of its data sets read tables; importing them must not fail.
        sys.modules["pandas"] = types.ModuleType("pandas")
    warnings.simplefilter("ignore")
    import dgl

    return dgl


def naive_peer(peer: Peer, args: argparse.Namespace) -> tuple[Callable[[], Tensor], int]:
    """Everything on the device, in plain torch operations; `unique` orders the new vertices of a hop."""
    indptr = torch.from_numpy(np.array(peer.graph.indptr)).to(peer.device)
    indices = torch.from_numpy(np.array(peer.graph.indices)).to(peer.device)
    row_of = torch.full((peer.graph.num_nodes,), -1, dtype=torch.int64, device=peer.device)
    seeds = peer.seeds()

    def sampled(vertices: Tensor) -> tuple[Tensor, Edges]:
        edges: Edges = []
        row_of[vertices] = torch.arange(len(vertices), device=peer.device)
        for fanout in FANOUTS:
            first, length = indptr[vertices], indptr[vertices + 1] - indptr[vertices]
            place = (torch.rand(len(vertices), fanout, device=peer.device) * length[:, None]).long()
            # A list no longer than the fan-out is taken whole, as everybody does.
            every = torch.arange(fanout, device=peer.device).expand_as(place)
            place = torch.where(length[:, None] <= fanout, every, place)
            drawn = every < length[:, None]
            found = indices[(first[:, None] + place)[drawn]].long()
            rows = torch.arange(len(vertices), device=peer.device)[:, None].expand_as(place)[drawn]
            fresh = torch.unique(found[row_of[found] < 0])
            row_of[fresh] = torch.arange(len(vertices), len(vertices) + len(fresh), device=peer.device)
            edges.append((torch.stack([row_of[found], rows]), len(vertices)))
            vertices = torch.cat([vertices, fresh])
        row_of[vertices] = -1
        return vertices, edges[::-1]

    def step() -> Tensor:
        some = next(seeds)
        vertices, edges = sampled(some)
        return peer.step(peer.x[vertices], edges, peer.y[some])

    return step, args.warm_up + args.batches


def pyg_peer(peer: Peer, args: argparse.Namespace) -> tuple[Callable[[], Tensor], int]:
    """Every layer on every vertex of the batch, as PyG's users run it."""
    batch = peer.batch()
    data = batch.to_pyg().to(peer.device)
    x, labels = peer.x[data.n_id], peer.y[data.n_id[: batch.num_seeds]]
    edges = [(data.edge_index, data.num_nodes)] * len(FANOUTS)
    return lambda: peer.step(x, edges, labels), args.warm_up + args.batches


def blocks_peer(peer: Peer, args: argparse.Namespace) -> tuple[Callable[[], Tensor], int]:
    """Every layer on the rows that it needs."""
    batch = peer.batch()
    vertices = torch.from_numpy(np.asarray(batch.vertices["node"], np.int64)).to(peer.device)
    edges = [
        (torch.from_numpy(np.stack([block.indices, block.destinations()]).astype(np.int64)).to(peer.device), rows)
        for block in batch.blocks
        for rows in [block.num_dst]
    ]
    x, labels = peer.x[vertices], peer.y[vertices[: batch.num_seeds]]
    return lambda: peer.step(x, edges, labels), args.warm_up + args.batches


def synchronise(device: str) -> None:
    """Wait for the device's work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


PEERS: dict[str, Callable[[Peer, argparse.Namespace], tuple[Callable[[], Tensor], int]]] = {
    "dgl": dgl_peer,
    "naive": naive_peer,
    "pyg": pyg_peer,
    "blocks": blocks_peer,
}

if __name__ == "__main__":
    main()
