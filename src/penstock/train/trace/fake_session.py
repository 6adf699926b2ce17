"""A session with meta weights, so that its steps can be traced, and the batches of its trace."""

import functools
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.graph.arrays import Array
from penstock.pipeline.loader import Batch, Loaded
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.progress import SILENT
from penstock.sampling.block import Block, MiniBatch
from penstock.trace.allocations import META, OPTIMISER, WEIGHTS, Allocations
from penstock.traced import BATCHES, Trace, memory_for, tracing
from penstock.train.layerwise.inference import evaluating
from penstock.train.optimisers import make_optimiser
from penstock.train.run_context import UNKNOWN, assumed_memory, device_memory_of, is_assumed
from penstock.train.session import Session
from penstock.train.steps.one_by_one import loss_of

_OPTIMISER_MODULES = ("torch.optim.", "torch.utils._foreach_utils")
_SUPPORTED_DEVICES = (
    "_get_fused_kernels_supported_devices",
    "_get_foreach_kernels_supported_devices",
    "_get_capturable_supported_devices",
)
"""Functions of torch that list the devices for which optimisers have fused or for-each steps."""
_LOOKED_AT = 1024
"""Rows of features in which zeros are counted."""


@contextmanager
def traced_session(session: Session, density: float, on_device: bool) -> Iterator[Allocations]:
    """Give the session meta weights and an optimiser over them, and record what a step allocates; both are restored
    afterwards.

    `density` is the share of the input features that are not zero. With `on_device` the session computes as on a GPU,
    which need not exist: its device is torch's `meta`, and what it does on the host is not recorded.
    """
    inputs, before = session.inputs, (session.optimiser, session.schedule, session.progress)
    device, carrier, sources = inputs.device, inputs.carrier, dict(inputs.sources)
    allocations = Allocations(on_device)
    trace = Trace(density, on_device, allocations.empty_cache, allocations.moves)
    memory = assumed_memory(_free(device), lambda: allocations.now) if on_device else nullcontext()
    with memory, allocations, tracing(trace), _gpu_optimisers(on_device), ExitStack() as restored:
        restored.callback(inputs.sources.update, sources)
        restored.callback(setattr, inputs, "carrier", carrier)
        restored.callback(setattr, inputs, "device", device)
        inputs.device, session.progress = META, SILENT
        try:
            with allocations.during("set-up"):
                with memory_for(WEIGHTS):
                    restored.enter_context(_fake_weights(session.learned))
                with memory_for(OPTIMISER):
                    session.optimiser = _traced_optimiser(session, allocations)
                restored.enter_context(allocations.following(session.learned))
                yield allocations
        finally:
            # What the trace has kept is freed before the weights are restored.
            session.optimiser.zero_grad(set_to_none=True)
            session.optimiser.state.clear()
            session.optimiser, session.schedule, session.progress = before


def _free(device: torch.device) -> int:
    """Free bytes of the GPU that `meta` stands for; unlimited if it does not exist."""
    known = is_assumed() or (device.type == "cuda" and torch.cuda.is_available())
    return device_memory_of(device)[0] if known else UNKNOWN


def _traced_optimiser(session: Session, allocations: Allocations) -> torch.optim.Optimizer:
    """An optimiser of the meta weights, whose steps are recorded as updates."""
    optimiser = make_optimiser(session.learned.parameters(), session.job, META)
    update: Any = optimiser.step
    begin: Any = optimiser._init_group  # type: ignore[attr-defined]

    def step(*given: Any, **named: Any) -> Any:
        with allocations.updating():
            return update(*given, **named)

    @functools.wraps(begin)
    def init_group(*given: Any, **named: Any) -> Any:
        with allocations.updating(step=False):
            return begin(*given, **named)

    optimiser.step, optimiser._init_group = step, init_group  # type: ignore[method-assign, attr-defined]
    return optimiser


@contextmanager
def _gpu_optimisers(on_device: bool) -> Iterator[None]:
    """Have optimisers treat `meta` as a device with torch's fused kernels, like the GPU that it stands for."""
    if not on_device:
        yield
        return
    with ExitStack() as restored:
        for module in [each for name, each in sys.modules.items() if name.startswith(_OPTIMISER_MODULES)]:
            for name in (each for each in _SUPPORTED_DEVICES if hasattr(module, each)):
                known = getattr(module, name)
                restored.callback(setattr, module, name, known)
                setattr(module, name, lambda *given, known=known, **named: [*known(*given, **named), "meta"])
        yield


def input_density(session: Session) -> float:
    """The share of stored features that are not zero, in some rows of each node type."""
    read = filled = 0
    for name, field in session.inputs.fields.items():
        nodes = session.graph.nodes[name]
        chosen = np.linspace(0, nodes.count - 1, min(nodes.count, _LOOKED_AT)).astype(np.int64)
        # The features of a partitioned graph are at the stores.
        here = nodes.fields.get(field)
        rows = session.inputs.sources[name].read(chosen) if here is None else here[chosen]
        read, filled = read + rows.size, filled + int(np.count_nonzero(rows))
    return filled / read if read else 1.0


@contextmanager
def _fake_weights(module: nn.Module) -> Iterator[None]:
    """Replace parameters and buffers by meta tensors; one that several modules share stays shared."""
    made: dict[int, Tensor] = {}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in module.modules():
        kinds: tuple[dict[str, Any], ...] = part._parameters, part._buffers
        for held in kinds:
            before.append((held, dict(held)))
            for name, value in held.items():
                if value is not None:
                    held[name] = made.setdefault(id(value), _fake(value))
    try:
        yield
    finally:
        for held, values in before:
            held.clear()
            held.update(values)


def _fake(value: Tensor) -> Tensor:
    made = torch.empty(value.shape, dtype=value.dtype, device=META)
    return nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made


# Batches: the largest one that a run is expected to draw, and the small one that a model is tried on.

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
    with torch.no_grad(), evaluating(session.model):
        loss_of(session, loaded, session.inputs.complete(loaded.batch))
