"""What an operator of the cost model declares, and the workload that operators are measured on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.nn.derived import transposed
from penstock.nn.operator_work import WINDOW, Amounts, Processor, Sizes
from penstock.sampling import Block, MiniBatch

Run = Callable[[], object]
"""One execution of an operator, which is timed."""


@dataclass(frozen=True, eq=False)
class Rung:
    """One size of the ladder: a graph, a batch of it, one of the batch's blocks, and the widths of a layer on it."""

    graph: Graph
    seeds: Array
    fanouts: tuple[int, ...]
    batch: MiniBatch[Block]
    block: Block
    width: int
    out: int
    heads: int = 4


@dataclass(frozen=True)
class Operator:
    """One operator: its sizes on a rung, the work that these sizes make, and how it is run."""

    name: str
    sizes: Callable[[Rung], dict[str, float]]
    work: Callable[[Sizes, Processor], Amounts]
    """The amounts of work; its keys name the rates that are fitted."""
    prepare: Callable[[Rung, torch.device], Run] | None = None
    """Everything but the operator itself is done here, before the clock starts."""
    measure_all: Callable[[list[Rung]], list[list[float]]] | None = None
    """For operators of several processes: the seconds of some runs on every rung."""
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    measured_on: Callable[[Rung, str], bool] = lambda rung, device: True
    """Whether it can be run on a rung by a kind of device; it is fitted to those on which it can."""
    first_use: bool = False
    """Whether the first run costs more than later ones, and is recorded."""
    cores: float = 0.0
    """Cores that it keeps busy at most; 0: all."""
    divided: bool = False
    """Whether its work is counted for the busiest of a processor's threads; small sizes then keep fewer cores busy."""
    backward: bool = False
    """Whether a training step calls it for gradients."""


def rows(count: int, width: int, device: torch.device, gradient: bool = False) -> torch.Tensor:
    """A matrix whose memory has been touched."""
    return torch.ones(count, width, device=device, requires_grad=gradient)


def moved(block: Block, device: torch.device) -> Any:
    """A block where the operator runs."""
    if device.type == "cpu":
        return block
    from penstock.sampling.device.block import on_device

    return on_device(block, device)


def distinct_rows(reads: Array, rows: int) -> int:
    """The rows that windows of 4,096 reads meet: each once for every window that reads it."""
    windows = np.arange(len(reads), dtype=np.int64) // WINDOW
    return len(np.unique(windows * rows + reads))


def block_sizes(block: Block) -> dict[str, float]:
    """The sizes of a block that operators on its lists have."""
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
