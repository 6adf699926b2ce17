"""How fast is a step beside PyG's SAGEConv, and does the pipeline keep both cores busy?

synthetic-products at 500,000 vertices and 25 M edges, fan-out 15,10,5, batches of 1024, GraphSAGE 3x256, Adam,
float32. Forward, backward and step on the same batches: ours, PyG as its users run it (every layer on every vertex of
the batch), and PyG with `trim_to_layer`, its own remedy. Then an epoch of the whole pipeline against the processor
seconds that preparing and computing take by themselves; and peak memory, each in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from penstock.graph.graph import Graph
from penstock.memory import peak_mb
from penstock.nn import GraphSAGE
from penstock.pipeline import Loader, PipelineOptions, Schedule
from penstock.sampling import BatchKey, MiniBatch, NeighbourSampler
from penstock.store import LocalStore, gather_rows
from products_batches import BATCH, FANOUTS, products, seed_batches, show

HIDDEN = 256
Step = Callable[[MiniBatch], float]


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
        rows = [*steps(graph, args.batches), epoch(graph, args.epoch_batches)]
        for row in rows[:2]:
            row["peak MB"] = measured_memory(graph, row["what"], args.batches)
    for row in rows:
        for key in ("s a batch", "CPU s a batch", "x", "peak MB"):
            row.setdefault(key, 0.0)
    show("training", rows, args.json)


def steps(graph: Graph, count: int) -> list[dict[str, Any]]:
    """Seconds a batch of forward, backward and step, the same batches for all."""
    batches = [loaded(graph, number, seeds) for number, seeds in enumerate(seed_batches(graph, count))]
    ways: dict[str, Step] = {
        "penstock": our_step(graph),
        "pyg": pyg_step(graph, False),
        "pyg trimmed": pyg_step(graph, True),
    }
    rows = []
    for what, step in ways.items():
        step(batches[0])
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            step(batch)
        wall, cpu = (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count
        rows.append({"what": what, "s a batch": wall, "CPU s a batch": cpu})
    for row in rows:
        row["x"] = row["s a batch"] / rows[0]["s a batch"]
    return rows


def loaded(graph: Graph, number: int, seeds: np.ndarray) -> MiniBatch:
    """A batch with features and labels."""
    batch = NeighbourSampler(graph, FANOUTS).sample(seeds, BatchKey(0, 0, number))
    batch.features["node"] = torch.from_numpy(gather_rows(graph.x, batch.vertices))
    batch.labels = torch.from_numpy(np.asarray(graph.y)[batch.seeds].astype(np.int64))
    return batch


def our_step(graph: Graph) -> Step:
    """Ours on blocks."""
    torch.manual_seed(0)
    model = GraphSAGE(graph, hidden=HIDDEN, layers=len(FANOUTS))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)

    def step(batch: MiniBatch) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(batch.blocks, batch.features["node"]), batch.labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def pyg_step(graph: Graph, trimmed: bool) -> Step:
    """PyG's SAGEConv on the batch its loader would give."""
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import trim_to_layer

    torch.manual_seed(0)
    widths = [graph.x.shape[1], HIDDEN, HIDDEN, int(np.asarray(graph.y).max()) + 1]
    layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.003)

    def step(batch: MiniBatch) -> float:
        optimiser.zero_grad(set_to_none=True)
        x, edges, (nodes_a_hop, edges_a_hop) = batch.features["node"], *pyg_form(batch)
        for number, layer in enumerate(layers):
            if trimmed:
                x, edges, _ = trim_to_layer(number, nodes_a_hop, edges_a_hop, x, edges)
            x = layer(x, edges)
            if number < len(layers) - 1:
                x = functional.dropout(functional.relu(x), 0.5, True)
        loss = functional.cross_entropy(x[: len(batch.seeds)], batch.labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def pyg_form(batch: MiniBatch) -> tuple[torch.Tensor, tuple[list[int], list[int]]]:
    """`edge_index`, and how many vertices and edges came with each hop."""
    inner_first = batch.blocks[::-1]
    nodes = [len(batch.seeds), *(block.num_src - block.num_dst for block in inner_first)]
    known, edges = 0, []
    for block in inner_first:
        edges.append(int(block.indptr[-1] - block.indptr[known]))
        known = block.num_dst
    return torch.from_numpy(batch.merged_edges()), (nodes, edges)


def epoch(graph: Graph, count: int) -> dict[str, Any]:
    """The pipeline's seconds a batch, against half the processor seconds its parts take alone on two cores."""
    seeds = np.concatenate(seed_batches(graph, count))
    step, sampler, store = our_step(graph), NeighbourSampler(graph, FANOUTS), LocalStore.of_graph(graph)

    def label(batch: MiniBatch) -> None:
        batch.labels = np.asarray(graph.y)[batch.seeds].astype(np.int64)

    def run(compute: bool) -> None:
        planned = Schedule(seeds, BATCH, 0, epochs=1).from_position()
        with Loader(
            planned,
            lambda each: sampler.sample(each.seeds, each.key),
            store,
            {"node": "x"},
            label,
            PipelineOptions.model_validate({}),
            torch.device("cpu"),
        ) as loader:
            for each in loader:
                if compute:
                    step(each.batch)

    run(False)
    prepare = cpu_seconds(lambda: run(False)) / count
    batches = [loaded(graph, number, some) for number, some in enumerate(seed_batches(graph, 6))]
    step(batches[0])
    compute = cpu_seconds(lambda: [step(batch) for batch in batches]) / len(batches)
    start = time.perf_counter()
    run(True)
    wall = (time.perf_counter() - start) / count
    ideal = (prepare + compute) / 2
    parts = f"epoch: prepare {prepare:.3f} + compute {compute:.3f} CPU s"
    return {"what": parts, "s a batch": wall, "CPU s a batch": prepare + compute, "x": wall / ideal}


def cpu_seconds(work: Callable[[], object]) -> float:
    """Processor seconds of all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measured_memory(graph: Graph, what: str, count: int) -> float:
    """Peak resident megabytes of a few batches in a process that does nothing else."""
    command = [sys.executable, __file__, "--graph", str(graph.path), "--memory-of", what, "--batches", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["peak_mb"])


def memory(graph: Graph, what: str, count: int) -> None:
    """Sample, gather and train a few batches one after the other."""
    step = our_step(graph) if what == "penstock" else pyg_step(graph, False)
    for number, seeds in enumerate(seed_batches(graph, count)):
        step(loaded(graph, number, seeds))
    print(json.dumps({"peak_mb": round(peak_mb(), 1)}))


if __name__ == "__main__":
    main()
