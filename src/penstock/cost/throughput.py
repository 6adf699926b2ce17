"""How fast batches are drawn and steps computed, and whether the pipeline keeps every core busy."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import numpy as np
import torch
from torch.nn import functional

from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.hashing import key_of, unit_draws
from penstock.memory import freed_memory_kept
from penstock.nn import GraphSAGE
from penstock.nn.eager import eager
from penstock.pipeline.batch_rows import HostCarrier
from penstock.pipeline.options import PipelineOptions
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import Batch, Loader
from penstock.sampling import BatchKey, MiniBatch, NeighbourSampler
from penstock.store.rows import gather_rows
from penstock.store.source import LocalStore

# How long a step takes, and whether the pipeline keeps every core busy.

Step = Callable[[Batch], float]


class TrainingRow(TypedDict):
    """One line of the table. `ratio` is relative to the first line's seconds; for an epoch, to its ideal."""

    what: str
    seconds_per_batch: float
    cpu_seconds_per_batch: float
    ratio: float


def loaded(graph: Graph, number: int, seeds: Array, fanouts: list[int]) -> MiniBatch:
    """A batch with features and labels."""
    batch = NeighbourSampler(graph, fanouts).sample(seeds, BatchKey(0, 0, number))
    batch.features[batch.node_type] = torch.from_numpy(gather_rows(graph.x, batch.vertices[batch.node_type])).float()
    batch.labels = torch.from_numpy(_labels(graph)[batch.seeds[batch.node_type]])
    return batch


def sage_step(graph: Graph, hidden: int, layers: int) -> Step:
    """Forward, backward and Adam step of a GraphSAGE on a batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GraphSAGE(graph, hidden=hidden, layers=layers)
    optimiser = eager(torch.optim.Adam)(model.parameters(), lr=0.003)

    def step(batch: Batch) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(model(batch.blocks, batch.features[batch.node_type]), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    return step


def measure_steps(ways: dict[str, Step], batches: list[MiniBatch]) -> list[TrainingRow]:
    """Seconds per batch of several ways to do the same step, with the same batches, threads and allocator."""
    rows: list[TrainingRow] = []
    for what, step in ways.items():
        with freed_memory_kept():
            step(batches[0])
            wall, cpu = time.perf_counter(), time.process_time()
            for batch in batches:
                step(batch)
        wall, cpu = (time.perf_counter() - wall) / len(batches), (time.process_time() - cpu) / len(batches)
        first = rows[0]["seconds_per_batch"] if rows else wall
        rows.append(training_row(what, wall, cpu, wall / first))
    return rows


@freed_memory_kept()
def measure_epoch(graph: Graph, batches: list[Array], fanouts: list[int], hidden: int) -> TrainingRow:
    """The whole pipeline's seconds per batch, compared with its CPU seconds spread evenly over the cores."""
    step, count = sage_step(graph, hidden, len(fanouts)), len(batches)
    seeds, size = np.concatenate(batches), len(batches[0])
    _pass(graph, seeds, size, fanouts, None)
    prepare = _cpu_seconds(lambda: _pass(graph, seeds, size, fanouts, None)) / count
    ready = [loaded(graph, number, some, fanouts) for number, some in enumerate(batches[:6])]
    step(ready[0])
    compute = _cpu_seconds(lambda: [step(batch) for batch in ready]) / len(ready)
    start = time.perf_counter()
    _pass(graph, seeds, size, fanouts, step)
    wall = (time.perf_counter() - start) / count
    ideal = (prepare + compute) / torch.get_num_threads()
    what = f"epoch (CPU s a batch: prepare {prepare:.3f}, compute {compute:.3f})"
    return training_row(what, wall, prepare + compute, wall / ideal)


def training_row(what: str, wall: float, cpu: float, ratio: float) -> TrainingRow:
    """One row of the benchmark's table, rounded."""
    return {
        "what": what,
        "seconds_per_batch": round(wall, 4),
        "cpu_seconds_per_batch": round(cpu, 4),
        "ratio": round(ratio, 3),
    }


def _pass(graph: Graph, seeds: Array, size: int, fanouts: list[int], step: Step | None) -> None:
    """Every batch once through the pipeline, computed or discarded."""
    sampler, labels = NeighbourSampler(graph, fanouts), _labels(graph)

    def label(batch: Batch) -> None:
        batch.labels = labels[batch.seeds[batch.node_type]]

    with Loader(
        Schedule(seeds, size, 0, epochs=1).from_position(),
        lambda planned: sampler.sample(planned.seeds, planned.key),
        HostCarrier({name: LocalStore.of_graph(graph).source(f"{name}/x") for name in graph.node_types}),
        label,
        PipelineOptions.model_validate({}),
    ) as loader:
        for each in loader:
            if step is not None:
                step(each.batch)


def _labels(graph: Graph) -> Array:
    return np.asarray(graph.y).astype(np.int64)


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# How fast batches are drawn, alone and with their features.


class SamplingRow(TypedDict):
    """One line of the table; edges are those drawn, of all layers."""

    sampler: str
    threads: int
    gather: bool
    edges_per_batch: int
    million_edges_per_second: float
    batches_per_second: float


def seed_batches(graph: Graph, size: int, count: int) -> list[Array]:
    """Vertices in a fixed random order, cut into batches: training vertices where the graph has some."""
    graph.require_one_relation("Measuring batches", "measure with another graph")
    graph.require_edges()
    (nodes,) = graph.nodes.values()
    seeds = np.asarray(nodes.splits["train"] if len(nodes.splits.get("train", ())) else np.arange(nodes.count))
    seeds = seeds[np.argsort(unit_draws(key_of(0, "bench"), len(seeds)))]
    size = min(size, len(seeds))
    return [seeds[i * size : (i + 1) * size] for i in range(min(count, len(seeds) // size))]


def measure_sampling(
    graph: Graph, batches: list[Array], fanouts: list[int], threads: int, gather: bool, rounds: int = 3
) -> SamplingRow:
    """The best of some rounds over the batches, one batch per thread; features go into one buffer per thread."""
    sampler, buffers = NeighbourSampler(graph, fanouts), dict[int, Array]()

    def work(index: int) -> int:
        batch = sampler.sample(batches[index], BatchKey(0, 0, index))
        if gather:
            vertices = batch.vertices[batch.node_type]
            count = len(vertices)
            gather_rows(graph.x, vertices, _buffer(buffers, count, graph.x)[:count])
        return batch.num_edges

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(min(2 * threads, len(batches)))))
        seconds, edges = best_of(rounds, lambda: sum(pool.map(work, range(len(batches)))))
    return sampling_row("penstock", threads, gather, len(batches), edges, seconds)


def sampling_row(sampler: str, threads: int, gather: bool, batches: int, edges: int, seconds: float) -> SamplingRow:
    """A line of the table from the counts."""
    return {
        "sampler": sampler,
        "threads": threads,
        "gather": gather,
        "edges_per_batch": edges // batches,
        "million_edges_per_second": round(edges / seconds / 1e6, 3),
        "batches_per_second": round(batches / seconds, 3),
    }


def best_of(rounds: int, work: Callable[[], int]) -> tuple[float, int]:
    """The shortest of some rounds in seconds, and what the work counted."""
    shortest, total = float("inf"), 0
    for _ in range(rounds):
        start = time.perf_counter()
        total = work()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest, total


def _buffer(buffers: dict[int, Array], count: int, x: Array) -> Array:
    thread = threading.get_ident()
    if thread not in buffers or len(buffers[thread]) < count:
        buffers[thread] = np.empty((count + count // 4, x.shape[1]), x.dtype)
    return buffers[thread]
