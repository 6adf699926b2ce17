"""What an operator of the cost model declares, the ladder of synthetic graphs that operators are measured on, and the
dense ones: products with weights, passes over a matrix, the loss and the optimiser's step.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.nn.aggregation import transposed
from penstock.nn.drop import relu_drop
from penstock.nn.eager import eager
from penstock.nn.operator_costs import (
    CHUNK,
    WINDOW,
    Amounts,
    Processor,
    Sizes,
    dense_gradient_work,
    dense_work,
    held_in_caches,
)
from penstock.progress import Progress
from penstock.sampling import BatchKey, Block, MiniBatch, NeighbourSampler
from penstock.sampling.neighbours import ALL

# What an operator of the cost model declares, and the workload that operators are measured on.

Run = Callable[[], object]
"""One timed execution of an operator."""


@dataclass(frozen=True, eq=False)
class Rung:
    """One size of the ladder: a graph, a batch of it, one of the batch's blocks, and the widths of a layer on it."""

    graph: Graph
    seeds: Array
    fanouts: tuple[int, ...]
    batch: MiniBatch
    block: Block
    width: int
    out: int
    heads: int = 4


@dataclass(frozen=True)
class Operator:
    """One operator: its sizes on a rung, the work of these sizes, and how it is run."""

    name: str
    sizes: Callable[[Rung], dict[str, float]]
    work: Callable[[Sizes, Processor], Amounts]
    """The amounts of work; its keys name the fitted rates."""
    prepare: Callable[[Rung, torch.device], Run] | None = None
    """Prepares everything but the operator itself, outside the timing."""
    measure_all: Callable[[list[Rung]], list[list[float]]] | None = None
    """For operators of several processes: the seconds of some runs on every rung."""
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    measured_on: Callable[[Rung, str], bool] = lambda rung, device: True
    """Whether it can be run on a rung by a kind of device; it is fitted to those on which it can."""
    first_use: bool = False
    """Whether the first run costs more than later ones, and is recorded."""
    cores: float = 0.0
    """The most cores that it keeps busy; 0: all."""
    divided: bool = False
    """Whether its work is that of the busiest thread; small sizes then keep fewer cores busy."""
    backward: bool = False
    """Whether a training step calls it for gradients."""


def work_of(*sizes: str) -> Callable[[Sizes, Processor], Amounts]:
    """Work that is some of the sizes themselves, beside the call."""
    return lambda given, processor: {"calls": 1.0, **{name: given[name] for name in sizes}}


def rows(count: int, width: int, device: torch.device, gradient: bool = False) -> torch.Tensor:
    """A matrix whose memory has been touched."""
    return torch.ones(count, width, device=device, requires_grad=gradient)


def distinct_rows(reads: Array, rows: int) -> int:
    """The distinct rows in every window of 4,096 reads, summed over the windows."""
    windows = np.arange(len(reads), dtype=np.int64) // WINDOW
    return len(np.unique(windows * rows + reads))


def block_sizes(block: Block) -> dict[str, float]:
    """The sizes of a block that are arguments of operators on its lists."""
    reads, lists = np.bincount(block.indices, minlength=block.num_src), np.diff(block.indptr)
    readers = transposed(block, block.num_src).indices
    return {
        "src": block.num_src,
        "dst": block.num_dst,
        "edges": block.num_edges,
        "src_distinct": distinct_rows(block.indices, block.num_src),
        "dst_distinct": distinct_rows(readers, block.num_dst),
        "src_passes": _passes(reads),
        "dst_passes": _passes(lists),
    }


def _passes(lengths: Array) -> int:
    """Passes over the rows that a kernel writes: four edges of a list at a time, then one by one."""
    return int((lengths // 4 + lengths % 4).sum())


# The ladder: synthetic graphs of growing sizes with a batch of each, on which operators are measured.

WHOLE = ALL
"""The number of seeds that means all vertices with all of their neighbours, as one block."""


@dataclass(frozen=True)
class _Step:
    nodes: int
    degree: int
    seeds: int
    fanouts: tuple[int, ...]
    layer: int
    """Which of the batch's blocks, the outermost first."""
    width: int
    out: int


_STEPS = [
    _Step(2_000, 4, 64, (5,), 0, 64, 16),
    _Step(3_000, 6, WHOLE, (-1,), 0, 96, 16),
    _Step(5_000, 10, 256, (10, 5), 1, 128, 40),
    _Step(10_000, 8, 512, (10, 5), 0, 32, 64),
    _Step(10_000, 12, WHOLE, (-1,), 0, 64, 32),
    _Step(20_000, 20, 1024, (5, 5), 0, 48, 128),
    _Step(20_000, 5, WHOLE, (-1,), 0, 300, 8),
    _Step(30_000, 15, 512, (15, 10), 0, 100, 47),
    _Step(50_000, 30, 256, (10, 10, 5), 0, 64, 256),
    _Step(50_000, 10, WHOLE, (-1,), 0, 16, 64),
    _Step(80_000, 25, 1024, (15, 10), 1, 256, 256),
    _Step(100_000, 8, 1024, (10, 10), 0, 200, 100),
    _Step(150_000, 20, 1024, (15, 10, 5), 0, 100, 64),
    _Step(200_000, 12, 2048, (10, 5), 0, 128, 256),
    _Step(300_000, 6, WHOLE, (-1,), 0, 32, 24),
    _Step(400_000, 15, 2048, (15, 10), 0, 256, 128),
]
RUNGS = len(_STEPS)
HELD_OUT = frozenset({1, 3, 6, 8, 11, 13})
"""Positions of the rungs that are held out from fitting."""


def made_ladder(progress: Progress) -> list[Rung]:
    """The rungs, the smallest first; the same on every machine."""
    graphs, made = dict[tuple[int, int], Graph](), list[Rung]()
    for step in _STEPS:
        key = step.nodes, step.degree
        if key not in graphs:
            graphs[key] = made_graph(*key)
        made.append(rung_of(graphs[key], step.seeds, step.fanouts, step.layer, step.width, step.out))
        progress.advance(1)
    return made


def rung_of(graph: Graph, seeds: int, fanouts: tuple[int, ...], layer: int, width: int, out: int) -> Rung:
    """One rung on a graph; its seeds are the same each time."""
    rng = np.random.default_rng(1)
    count = graph.num_nodes if seeds == WHOLE else min(seeds, graph.num_nodes)
    chosen = np.arange(count) if seeds == WHOLE else rng.choice(graph.num_nodes, count, replace=False)
    batch = NeighbourSampler(graph, list(fanouts)).sample(chosen, BatchKey(0, 0, 0))
    return Rung(graph, chosen, fanouts, batch, batch.blocks[layer], width, out)


def is_sampled(rung: Rung) -> bool:
    """Whether a rung's batch was drawn, rather than the whole graph."""
    return WHOLE not in rung.fanouts


def rungs_on(graph: Graph) -> Iterator[Rung]:
    """The ladder's kinds of batches on a given graph, where they are not larger than it."""
    for step in _STEPS:
        if step.seeds == WHOLE and graph.num_edges * step.width > 1 << 28:
            continue
        yield rung_of(graph, step.seeds, step.fanouts, step.layer, step.width, step.out)


def made_graph(nodes: int, degree: int, seed: int = 0) -> Graph:
    """A graph with a few long lists and many short ones, whose often-read vertices are spread randomly."""
    rng = np.random.default_rng([seed, nodes, degree])
    lengths = np.minimum((degree / 2 * (1 + rng.pareto(2.0, nodes))).astype(np.int64), nodes // 2)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    places = rng.permutation(nodes).astype(np.int32)
    sources = places[(rng.random(int(indptr[-1])) ** 2 * nodes).astype(np.int64)]
    edges = EdgeSet(indptr, sources)
    return Graph({"node": NodeSet(nodes)}, {("node", "to", "node"): edges}, f"made-{nodes}-{degree}")


# Dense products of a layer: rows times weights, and the gradients of both.


def _product_sizes(rung: Rung) -> dict[str, float]:
    return {"rows": rung.block.num_dst, "in": rung.width, "out": rung.out}


def _forward(rung: Rung, device: torch.device) -> Run:
    x, weight = rows(rung.block.num_dst, rung.width, device), rows(rung.out, rung.width, device)
    return lambda: functional.linear(x, weight)


def _weight_gradient(rung: Rung, device: torch.device) -> Run:
    x, gradient = rows(rung.block.num_dst, rung.width, device), rows(rung.block.num_dst, rung.out, device)
    return lambda: gradient.t() @ x


def _input_gradient(rung: Rung, device: torch.device) -> Run:
    gradient, weight = rows(rung.block.num_dst, rung.out, device), rows(rung.out, rung.width, device)
    return lambda: gradient @ weight


DENSE = Operator("dense", _product_sizes, dense_work, _forward)
DENSE_WEIGHT_GRADIENT = Operator(
    "dense_weight_gradient", _product_sizes, dense_gradient_work, _weight_gradient, backward=True
)
DENSE_INPUT_GRADIENT = Operator(
    "dense_input_gradient", _product_sizes, dense_gradient_work, _input_gradient, backward=True
)


# Passes over a matrix: rectifier with dropout and its gradient, sums of two matrices, sums of columns.

_SHARE = 0.5


def _matrix_sizes(rung: Rung) -> dict[str, float]:
    return {"rows": rung.block.num_dst, "width": rung.out}


def _matrix(rung: Rung, device: torch.device, gradient: bool = False) -> torch.Tensor:
    return rows(rung.block.num_dst, rung.out, device, gradient)


def _relu_drop(rung: Rung, device: torch.device) -> Run:
    x = _matrix(rung, device)
    return lambda: relu_drop(x, _SHARE)


def _relu_drop_backward(rung: Rung, device: torch.device) -> Run:
    x = _matrix(rung, device, gradient=True)
    result = relu_drop(x * 1.0, _SHARE)
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, x, gradient, retain_graph=True)


def _add(rung: Rung, device: torch.device) -> Run:
    left, right = _matrix(rung, device), _matrix(rung, device)
    return lambda: left + right


def _column_sum(rung: Rung, device: torch.device) -> Run:
    x = _matrix(rung, device)
    return lambda: x.sum(0)


def pass_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a pass over [rows, width] by torch: values in the last cache, and others."""
    numbers = sizes["rows"] * sizes["width"]
    _, held = held_in_caches(12 * numbers, processor)
    work = {"rows": sizes["rows"], "numbers": numbers, "memory": numbers * (1 - held)}
    threads = processor.threads if numbers > _GRAIN else 1.0
    return {"calls": 1.0, **{name: amount / threads for name, amount in work.items()}}


def column_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a sum over rows, which reads memory with the stride of a row."""
    numbers = sizes["rows"] * sizes["width"]
    _, held = held_in_caches(12 * numbers, processor)
    return {**pass_work(sizes, processor), "by_column": numbers * (1 - held) * sizes["width"]}


def kernel_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a pass over [rows, width] by a kernel of Penstock's: the rows of its busiest thread."""
    rows, width = sizes["rows"], sizes["width"]
    _, held = held_in_caches(12 * rows * width, processor)
    chunk = max(1, CHUNK // max(1, int(width)))
    busiest = min(rows, chunk * math.ceil(math.ceil(rows / chunk) / processor.threads))
    return {"calls": 1.0, "rows": busiest, "numbers": busiest * width, "memory": busiest * width * (1 - held)}


_GRAIN = 32768
"""The number of values from which torch divides a pass among threads."""

RELU_DROP = Operator("relu_drop", _matrix_sizes, kernel_work, _relu_drop, divided=True)
RELU_DROP_BACKWARD = Operator(
    "relu_drop_backward", _matrix_sizes, kernel_work, _relu_drop_backward, divided=True, backward=True
)
ADD = Operator("add", _matrix_sizes, pass_work, _add, divided=True)
COLUMN_SUM = Operator("column_sum", _matrix_sizes, column_work, _column_sum, divided=True, backward=True)


# The end of a step: the loss with its gradient, and the optimiser's step.


def _loss(rung: Rung, device: torch.device) -> Run:
    x = rows(len(rung.seeds), rung.out, device, gradient=True)
    labels = torch.zeros(len(rung.seeds), dtype=torch.int64, device=device)
    return lambda: functional.cross_entropy(x, labels).backward()  # type: ignore[no-untyped-call]


def _optimiser(rung: Rung, device: torch.device) -> Run:
    weights = [rows(rung.out, rung.width, device, gradient=True) for _ in range(_tensors(rung))]
    for each in weights:
        each.grad = torch.full_like(each, 1e-3)
    optimiser = eager(torch.optim.Adam)(weights, lr=0.003)
    return lambda: optimiser.step()


def _tensors(rung: Rung) -> int:
    return 1 + 2 * len(rung.fanouts)


def loss_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Some passes over the outputs."""
    return {"calls": 1.0, "rows": sizes["rows"], "numbers": sizes["rows"] * sizes["classes"]}


LOSS = Operator("loss", lambda rung: {"rows": len(rung.seeds), "classes": rung.out}, loss_work, _loss)
OPTIMISER = Operator(
    "optimiser",
    lambda rung: {"tensors": _tensors(rung), "numbers": _tensors(rung) * rung.width * rung.out},
    # Every weight with its two moments, and some calls for each tensor.
    work_of("tensors", "numbers"),
    _optimiser,
)
