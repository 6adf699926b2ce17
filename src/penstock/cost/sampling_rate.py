"""How fast batches are drawn, alone and with their features."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.hashing import key_of, unit_draws
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.store import gather_rows


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
    if not graph.is_homogeneous or not graph.edges:
        raise PenstockError(
            "Measuring needs a graph with one node type and one edge type.", code="unsupported-combination"
        )
    (nodes,) = graph.nodes.values()
    seeds = np.asarray(nodes.splits["train"] if len(nodes.splits.get("train", ())) else np.arange(nodes.count))
    draws = np.empty(len(seeds))
    unit_draws(key_of(0, "bench"), 0, draws)
    seeds = seeds[np.argsort(draws)]
    size = min(size, len(seeds))
    return [seeds[i * size : (i + 1) * size] for i in range(min(count, len(seeds) // size))]


def measure_sampling(
    graph: Graph, batches: list[Array], fanouts: list[int], threads: int, gather: bool, rounds: int = 3
) -> SamplingRow:
    """The best of some rounds over the batches, a batch a thread; features go into one buffer a thread."""
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
    """A line from what was counted."""
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
