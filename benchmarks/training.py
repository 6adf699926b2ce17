"""How fast is a step beside PyG's SAGEConv, and does the pipeline keep both cores busy?

synthetic-products at 500,000 vertices and 25 M edges, fan-out 15,10,5, batches of 1024, GraphSAGE 3x256, Adam,
float32. Forward, backward and step on the same batches: ours, PyG as its users run it (every layer on every vertex of
the batch), PyG with `trim_to_layer`, its own remedy, and PyG on our blocks, its best. Then an epoch of the whole
pipeline against the processor seconds that preparing and computing take by themselves; and peak memory, each in a
process of its own.
Run: OMP_WAIT_POLICY=passive python benchmarks/training.py (as the command line sets it; read before torch loads).
"""

import argparse
import json
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from penstock.cost.throughput import Step, loaded, measure_epoch, measure_steps, sage_step, seed_batches
from penstock.graph.folder import Graph
from penstock.memory import freed_memory_kept, peak_mb
from penstock.sampling import MiniBatch
from penstock.sampling.block import merge_edges
from products_graph import BATCH, FANOUTS, products, show

HIDDEN = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=6, help="batches of the step comparison")
    parser.add_argument("--epoch-batches", type=int, default=24)
    parser.add_argument("--graph", type=Path, help="keep the graph in this folder")
    parser.add_argument("--memory-of", choices=["penstock", "pyg"], help="print the peak of a few batches and stop")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.memory_of:
        memory(Graph.open(args.graph), args.memory_of, args.batches)
        return
    with products(args.nodes, args.graph) as graph:
        seeds = seed_batches(graph, BATCH, args.epoch_batches)
        batches = [loaded(graph, number, some, FANOUTS) for number, some in enumerate(seeds[: args.batches])]
        ours = sage_step(graph, HIDDEN, len(FANOUTS))
        ways = {
            "penstock": ours,
            "pyg": pyg_step(graph, False),
            "pyg trimmed": pyg_step(graph, True),
            "pyg on our blocks": pyg_block_step(graph),
        }
        rows: list[dict[str, Any]] = [{**row, "peak_mb": None} for row in measure_steps(ways, batches)]
        del batches
        rows.append({**measure_epoch(graph, seeds, FANOUTS, HIDDEN), "peak_mb": None})
        for row in rows[:2]:
            row["peak_mb"] = measured_memory(graph, row["what"], args.batches)
    show("training", rows, args.json)


def pyg_layers(graph: Graph) -> tuple[torch.nn.ModuleList, torch.optim.Optimizer]:
    """Three SAGEConv of the widths ours has, and Adam."""
    from torch_geometric.nn import SAGEConv

    torch.manual_seed(0)
    widths = [graph.x.shape[1], HIDDEN, HIDDEN, int(np.asarray(graph.y).max()) + 1]
    layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))
    return layers, torch.optim.Adam(layers.parameters(), lr=0.003)


def pyg_step(graph: Graph, trimmed: bool) -> Step:
    """PyG's SAGEConv on the batch its loader would give."""
    from torch_geometric.utils import trim_to_layer

    layers, optimiser = pyg_layers(graph)

    def step(batch: MiniBatch) -> float:
        optimiser.zero_grad(set_to_none=True)
        x, edges, (nodes_a_hop, edges_a_hop) = batch.features[batch.node_type], *pyg_form(batch)
        for number, layer in enumerate(layers):
            if trimmed:
                x, edges, _ = trim_to_layer(number, nodes_a_hop, edges_a_hop, x, edges)
            x = layer(x, edges)
            if number < len(layers) - 1:
                x = functional.dropout(functional.relu(x), 0.5, True)
        loss = functional.cross_entropy(x[: batch.num_seeds], batch.labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def pyg_block_step(graph: Graph) -> Step:
    """PyG's SAGEConv at its best: one bipartite call a block, on the rows a layer needs and no others."""
    layers, optimiser = pyg_layers(graph)

    def step(batch: MiniBatch) -> float:
        optimiser.zero_grad(set_to_none=True)
        x = batch.features[batch.node_type]
        for number, (layer, block) in enumerate(zip(layers, batch.blocks, strict=True)):
            ends = np.stack([block.indices, block.destinations()]).astype(np.int64)
            x = layer((x, x[: block.num_dst]), torch.from_numpy(ends))
            if number < len(layers) - 1:
                x = functional.dropout(functional.relu(x), 0.5, True)
        loss = functional.cross_entropy(x, batch.labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def pyg_form(batch: MiniBatch) -> tuple[torch.Tensor, tuple[list[int], list[int]]]:
    """`edge_index`, and how many vertices and edges came with each hop."""
    inner_first = batch.blocks[::-1]
    nodes = [batch.num_seeds, *(block.num_src - block.num_dst for block in inner_first)]
    known, edges = 0, []
    for block in inner_first:
        edges.append(int(block.indptr[-1] - block.indptr[known]))
        known = block.num_dst
    return torch.from_numpy(merge_edges(batch.blocks)), (nodes, edges)


def measured_memory(graph: Graph, what: str, count: int) -> float:
    """Peak resident megabytes of a few batches in a process that does nothing else."""
    command = [sys.executable, __file__, "--graph", str(graph.path), "--memory-of", what, "--batches", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["peak_mb"])


def memory(graph: Graph, what: str, count: int) -> None:
    """Sample, gather and train a few batches one after the other.

    Ours with the allocator's setting that training runs under, which keeps what a step frees; PyG's with its users'.
    """
    ours = what == "penstock"
    step = sage_step(graph, HIDDEN, len(FANOUTS)) if ours else pyg_step(graph, False)
    with freed_memory_kept() if ours else nullcontext():
        for number, seeds in enumerate(seed_batches(graph, BATCH, count)):
            step(loaded(graph, number, seeds, FANOUTS))
    print(json.dumps({"peak_mb": round(peak_mb(), 1)}))


if __name__ == "__main__":
    main()
