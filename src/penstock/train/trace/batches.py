"""Batches of a trace: the largest one that a run is expected to draw, and the small one that a model is tried on."""

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.pipeline.loader import Batch, Loaded
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.sampling.block import Block, MiniBatch
from penstock.traced import BATCHES, memory_for
from penstock.train.session import Session
from penstock.train.steps.one_by_one import loss_of

# The largest batch that a run is expected to draw, estimated from a few that are drawn before it. Sizes of batches are
# sums over many vertices and so nearly normal. Of n batches the largest is expected at sqrt(2 ln n) standard deviations
# above the mean, and it is at least the largest one drawn. An epoch's last batch, which may be small, is not counted. A
# sampler whose batches have a known largest size is bounded by it.

_DRAWN = 12
"""Batches that are drawn for the estimate."""


@dataclass(frozen=True, eq=False)
class LargestBatch:
    """A drawn batch, and the factor by which the run's largest is expected to exceed it."""

    planned: Planned
    batch: Batch
    factor: float
    """The factor of rows and edges."""
    drawn: int
    batches: int
    """Batches of the whole run."""

    @property
    def how(self) -> str:
        """How the largest batch was found, in words."""
        if self.drawn >= self.batches:
            return f"all {self.batches:,} batches were drawn"
        grown = f", {100 * (self.factor - 1):.1f} % larger than the largest of them" if self.factor > 1 else ""
        return f"the largest of {self.batches:,} batches, estimated from {self.drawn} that were drawn{grown}"

    def loaded(self) -> Loaded:
        """The expected batch as meta tensors, with as many rows and edges as it will have."""
        return Loaded(self.planned, enlarged(self.batch, self.factor))


def largest_batch(session: Session, schedule: BatchPlan, batches: int) -> LargestBatch:
    """Draw some of a run's batches, and estimate the largest."""
    drawn: list[tuple[Planned, Batch]] = []
    loads, full = list[int](), list[int]()
    for planned in islice(schedule.from_position(), min(_DRAWN, batches)):
        batch = session.task.sample(planned)
        loads.append(load_of(batch))
        if len(planned.seeds) == schedule.batch_size or not full:
            full.append(loads[-1])
        if loads[-1] == max(loads):
            drawn = [(planned, batch)]
    mean = sum(full) / len(full)
    spread = (sum((load - mean) ** 2 for load in full) / max(1, len(full) - 1)) ** 0.5
    expected = mean + math.sqrt(2 * math.log(max(2, batches))) * spread if batches > len(loads) else max(loads)
    ((planned, batch),) = drawn
    expected = min(expected, _most(session, batch))
    return LargestBatch(planned, batch, max(1.0, expected / max(1, max(loads))), len(loads), batches)


def load_of(batch: Batch) -> int:
    """The number of rows and edges that a batch's layers read."""
    return sum(map(len, batch.vertices.values())) + batch.num_edges


def _most(session: Session, batch: Batch) -> float:
    """An upper bound of any batch's rows and edges: all of the graph's, in every layer."""
    graph = session.graph
    if session.job.time is not None:
        # Vertices are repeated in the trees of their seeds, so the graph is no bound.
        return math.inf
    return graph.num_nodes + len(batch.blocks) * graph.num_edges


def enlarged(batch: Any, factor: float) -> Any:
    """A batch with `factor` times the rows and edges; its seeds and what a task adds are unchanged.

    Only its shapes are meaningful, and which rows have edges.
    """
    seeds = {name: len(ids) for name, ids in batch.seeds.items()}

    def grown(name: str, rows: int) -> int:
        return max(seeds.get(name, 0) if rows else 0, round(factor * rows)) if rows > seeds.get(name, 0) else rows

    blocks: list[Block] = []
    for block in batch.blocks:
        named = block.named((name, "", name) for name in batch.vertices)
        relations = {
            kind: _enlarged_block(part, factor, grown(kind[0], part.num_src), grown(kind[2], part.num_dst))
            for kind, part in named.relations.items()
        }
        sizes = (
            {name: grown(name, rows) for name, rows in each.items()} for each in (named.src_counts, named.dst_counts)
        )
        blocks.append(next(iter(relations.values())) if block.has_lists else Block.of_relations(relations, *sizes))
    vertices = {name: np.empty(grown(name, len(ids)), ids.dtype) for name, ids in batch.vertices.items()}
    for name, ids in batch.vertices.items():
        vertices[name][: len(ids)] = ids
        vertices[name][len(ids) :] = 0
    made: MiniBatch = replace(batch, vertices=vertices, blocks=blocks, features={})
    return made


def _enlarged_block(block: Block, factor: float, num_src: int, num_dst: int) -> Block:
    edges = round(factor * block.num_edges)
    filled = round(np.count_nonzero(np.diff(block.indptr)) * num_dst / max(1, block.num_dst))
    indptr = (np.minimum(np.arange(num_dst + 1), filled) * edges // max(1, filled)).astype(block.indptr.dtype)

    def room(array: Array | None, size: int) -> Array | None:
        return None if array is None else np.zeros((size, *array.shape[1:]), array.dtype)

    totals = None
    if block.totals is not None:
        totals = room(block.totals, num_src if len(block.totals) == block.num_src else num_dst)
    indices = room(block.indices, edges)
    assert indices is not None
    return Block(
        indptr,
        indices,
        num_src,
        room(block.weights, edges),
        totals,
        room(block.edges, edges),
        ages=room(block.ages, edges),
    )


# Batches in a trace: brought to the device by the session's carrier, and the small one that a model is tried on.

_TRIED = 4
"""Seeds of the batch that a model is tried on before it trains."""


def carried(session: Session, loaded: Loaded) -> Loaded:
    """A sampled batch, moved to where it is computed by the session's carrier."""
    carrier: Any = session.inputs.carrier
    with memory_for(BATCHES):
        carrier.gather(loaded.batch)
        session.task.label(loaded.batch)
        carrier.transfer(loaded.batch)
        carrier.arrive(loaded.batch)
    return loaded


def try_small_batch(session: Session, planned: Planned) -> None:
    """Do what `assembly.try_out` does on a few seeds before a run begins."""
    batch = session.task.sample(planned._replace(seeds=planned.seeds[:_TRIED]))
    loaded = carried(session, Loaded(planned, batch))
    with torch.no_grad():
        loss_of(session, loaded, session.inputs.complete(loaded.batch))
