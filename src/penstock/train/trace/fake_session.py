"""A session with meta weights, so that its steps and validations can be traced, and the batches of its trace."""

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.pipeline.stages import Batch, Loaded
from penstock.progress import SILENT
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import on_device
from penstock.trace.allocations import ACTIVATIONS, META, OPTIMISER, WEIGHTS, Allocations
from penstock.traced import BATCHES, Trace, by_other_threads, is_gpu, memory_for, tracing
from penstock.train.dataset.labels import in_any
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import Inference, Sampled, evaluating
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
    all_drawn: list[Loaded]
    """The batches that were drawn, the first of the run."""
    batches: int
    """Batches of the whole run."""

    @property
    def how(self) -> str:
        """How the largest batch was found, in words."""
        drawn = len(self.all_drawn)
        if drawn >= self.batches:
            return f"all {self.batches:,} batches were drawn"
        grown = f", {100 * (self.factor - 1):.1f} % larger than the largest of them" if self.factor > 1 else ""
        return f"the largest of {self.batches:,} batches, estimated from {drawn} that were drawn{grown}"

    @property
    def steps(self) -> list[Loaded]:
        """The batches that were drawn, and the expected largest unless it is one of them. Their sizes differ, so that
        each leaves holes that may be too small for the next one's arrays.
        """
        return self.all_drawn if len(self.all_drawn) >= self.batches else [*self.all_drawn, self.loaded()]

    def loaded(self) -> Loaded:
        """The expected batch as meta tensors, with as many rows and edges as it will have."""
        return Loaded(self.planned, enlarged(self.batch, self.factor))


def largest_batch(session: Session, schedule: BatchPlan, batches: int) -> LargestBatch:
    """Draw some of a run's batches, and estimate the largest."""
    drawn: list[Loaded] = []
    loads, full = list[int](), list[int]()
    for planned in islice(schedule.from_position(), min(_DRAWN, batches)):
        batch = session.task.sample(planned)
        loads.append(load_of(batch))
        if len(planned.seeds) == schedule.batch_size or not full:
            full.append(loads[-1])
        drawn.append(Loaded(planned, batch))
    mean = sum(full) / len(full)
    spread = (sum((load - mean) ** 2 for load in full) / max(1, len(full) - 1)) ** 0.5
    expected = mean + math.sqrt(2 * math.log(max(2, batches))) * spread if batches > len(loads) else max(loads)
    largest = drawn[loads.index(max(loads))]
    expected = min(expected, _most(session, largest.batch))
    factor = max(1.0, expected / max(1, max(loads)))
    return LargestBatch(largest.planned, largest.batch, factor, drawn, batches)


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

TRIED = 4
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
    batch = session.task.sample(planned._replace(seeds=planned.seeds[:TRIED]))
    loaded = carried(session, Loaded(planned, batch))
    with torch.no_grad(), evaluating(session.model):
        loss_of(session, loaded, session.inputs.complete(loaded.batch))


_READ, _AHEAD = 2, 4
"""Chunks whose rows are in a host's memory at once: the one being computed, and the next; and those that are drawn: a
third waits to be read while a fourth is drawn.
"""
_GROWING = 16
"""Chunks of whole neighbourhoods that are examined until their size is known: it doubles while it fits."""
_BATCHES_LOOKED_AT = 8
"""Chunks of a layer, or further ones of whole neighbourhoods, that are examined: their sizes differ."""
_TRIES = 4
"""Numbers of vertices that are tried until a chunk fills the working memory."""
_FEW_EDGES = 50_000_000
"""The vertices that an evaluation reads are found only in graphs with at most this many edges. In larger ones every
layer has many chunks, which are about as large as those over all vertices.
"""
_VALIDATION = ("val",)
"""Splits that are evaluated after an epoch."""
_LAST_EVALUATION = ("val", "test")
"""Splits that are evaluated when a run ends."""


def trace_last_inference(session: Session, prepare: Callable[[], Inference], allocations: Allocations) -> None:
    """Trace the evaluation at the end of a run, if it reads more vertices than validations before it do."""
    wanted, more = _wanted(session, _VALIDATION), _wanted(session, _LAST_EVALUATION)
    validates = session.job.evaluate_every > 0
    if not validates or any(len(rows) > len(wanted[name]) for name, rows in more.items()):
        _trace_evaluation(session, prepare, allocations, _LAST_EVALUATION)


def trace_validation(session: Session, prepare: Callable[[], Inference], allocations: Allocations) -> None:
    """Trace the validation after an epoch, beside what steps keep, if the job has one."""
    if session.job.evaluate_every > 0:
        _trace_evaluation(session, prepare, allocations, _VALIDATION)


def _trace_evaluation(
    session: Session, prepare: Callable[[], Inference], allocations: Allocations, splits: Sequence[str]
) -> None:
    wanted = {} if session.job.evaluate_every < 0 else _wanted(session, splits)
    if not any(map(len, wanted.values())):
        return
    with allocations.during("validation"), memory_for(ACTIVATIONS):
        by_layers = getattr(session.model, "layerwise", False)
        # A model that is not made of layers reads whole neighbourhoods from the host's lists.
        inference = prepare() if by_layers else session.whole_graph_inference()
        if isinstance(inference.plan, HostPlan):
            allocations.host_validates = True
            _trace_chunks(session, inference, inference.plan, wanted)
        else:
            outputs = inference.outputs(wanted)
            kept = [rows.float() for rows in outputs.values()]
            del outputs, kept
        if not is_gpu(session.inputs.device):
            ranked = torch.empty(
                session.task.evaluation_bytes(_present(session, splits)), dtype=torch.uint8, device=META
            )
            del ranked


def _present(session: Session, splits: Sequence[str]) -> list[str]:
    """Those of the splits that are not empty."""
    return [split for split in splits if len(_items(session, split))]


def _wanted(session: Session, splits: Sequence[str]) -> dict[str, Array]:
    """The vertices whose outputs an evaluation reads; for tasks on edges, all of them."""
    target = getattr(session.task, "node_type", None)
    if target is None:
        return {name: np.arange(nodes.count) for name, nodes in session.graph.nodes.items()}
    return {target: in_any([_items(session, split) for split in splits])}


def _items(session: Session, split: str) -> Array:
    """The items of a split, stored or drawn by the task; empty where it does not exist."""
    try:
        return session.task.items_of(split)
    except PenstockError as error:
        if error.code != "split-missing":
            raise
        return np.empty(0, np.int64)


def _trace_chunks(session: Session, inference: Inference, plan: HostPlan, wanted: dict[str, Array]) -> None:
    """Trace the largest of some chunks of every layer and node type, and the rows between layers."""
    model: Any = session.model
    with torch.no_grad(), evaluating(session.model), session.precision():
        if not (getattr(model, "layerwise", False) and plan.by_layers):
            _trace_neighbourhoods(session, inference, plan, wanted)
            return
        if session.graph.num_edges <= _FEW_EDGES:
            plan.start(wanted, model.num_layers, model.num_layers)
        else:
            plan.start_everywhere(model.num_layers)
        widths, levels = session.inputs.widths, list[Any]()
        for number in range(model.num_layers):
            looked_at = plan.some_chunks(number, _BATCHES_LOOKED_AT)
            largest = [max(some, key=_rows_and_edges) for some in looked_at if some]
            level = [_trace_chunk(inference, number, widths, each, looked_at) for each in largest]
            if not level:
                return
            widths = dict.fromkeys(session.graph.nodes, level[0].shape[1])
            # The level below is freed when this one is complete.
            levels = [*levels[-1:], level]


def _trace_chunk(
    inference: Inference, number: int, widths: dict[str, int], computed: Sampled, looked_at: list[list[Sampled]]
) -> torch.Tensor:
    """Trace a chunk while a host has the rows of the largest other one in memory; returns the rows of its type that
    the layer keeps in the host's memory, which are made beside the chunk: none where they exceed the budget.
    """
    others = sorted((each for some in looked_at for each in some if each is not computed), key=_rows_and_edges)
    ahead = [] if is_gpu(META) else others[:-_AHEAD:-1]
    with _reading(bool(ahead)):
        drawn = [lists_memory(sampled) for sampled in (computed, *ahead)]
        held = [_read(sampled, widths, inference) for sampled in (computed, *ahead[: _READ - 1])]
    out = inference.engine.layer(number, *held[0])
    del drawn
    plan: Any = inference.plan
    rows, width = plan.rows_of(number)[computed.chunk.node_type], out.shape[1]
    is_kept = not is_gpu(META) and 4 * rows * width <= plan.budget
    return torch.empty(rows if is_kept else 0, width, device=META)


def _rows_and_edges(sampled: Sampled) -> int:
    """The number of rows that a chunk reads and writes, and of its edges."""
    edges: int = sum(block.num_edges for block in sampled.blocks)
    return sampled.num_inputs + len(sampled.chunk.rows) + edges


def _trace_neighbourhoods(session: Session, inference: Inference, plan: HostPlan, wanted: dict[str, Array]) -> None:
    ((name, rows), *_) = wanted.items()
    plan.start({name: rows}, 0, 0)
    found = _largest_neighbourhoods(session, plan, name, rows)
    repeated = _READ if len(found.chunk.rows) < len(rows) else 1
    with _reading(repeated > 1):
        drawn = lists_memory(found)
        held = [_read(found, session.inputs.widths, inference) for _ in range(1 if is_gpu(META) else repeated)]
    out = inference.engine.forward(*held[0])
    outputs = [out if isinstance(out, torch.Tensor) else out.get(name)]
    del out
    if repeated > 1 and outputs[0] is not None:
        # The outputs of earlier chunks are in memory while later ones are computed, and are concatenated at the end.
        outputs = [outputs[0].new_empty(len(rows), *outputs[0].shape[1:])]
        inference.engine.forward(*held[0])
        outputs.append(torch.empty_like(outputs[0]))
    del outputs, drawn


def _reading(ahead: bool) -> AbstractContextManager[None]:
    """A context for reading chunks: on a host by other threads, unless there is only one chunk."""
    return by_other_threads() if ahead and not is_gpu(META) else nullcontext()


def lists_memory(drawn: Batch | Sampled) -> list[Tensor]:
    """The memory of drawn neighbour lists on a host, and of the positions of a hop's entries, which the thread that
    draws keeps.
    """
    parts = [part for block in drawn.blocks for part in block.parts]
    arrays = [(each.indptr, each.indices, each.weights, each.totals, each.edges) for each in parts]
    sizes = [array.nbytes for some in arrays for array in some if array is not None]
    most = 8 * max((part.num_edges for part in parts), default=0)
    return [torch.empty(0 if is_gpu(META) else size, dtype=torch.uint8, device=META) for size in [*sizes, most]]


def _largest_neighbourhoods(session: Session, plan: HostPlan, name: str, rows: Array) -> Sampled:
    """Approximately the largest chunk of whole neighbourhoods in a run.

    Of many chunks some fill the working memory. A chunk of one vertex may take more, most where it has most neighbours.
    """
    of_edges = getattr(session.task, "times", None)
    # For edges by time: after the last of them the whole graph is visible.
    times = None if of_edges is None else np.full(len(rows), np.nanmax(of_edges.values))
    found = list(islice(plan.neighbourhoods(name, rows, times), _GROWING))
    size, seen = len(found[-1].chunk.rows), sum(len(each.chunk.rows) for each in found)
    if seen < len(rows):
        many = np.argsort(-_neighbours(session, name, rows), kind="stable")[:_BATCHES_LOOKED_AT]
        found += [plan.neighbourhood(name, rows[some : some + 1], times) for some in many.tolist()]
    if seen < len(rows) and size > 1:
        firsts = np.linspace(0, len(rows), _BATCHES_LOOKED_AT, endpoint=False).astype(np.int64)
        found += [_filled(plan, name, rows[first:], times, size) for first in firsts.tolist()]
    return max(found, key=plan.load_of)


def _neighbours(session: Session, name: str, rows: Array) -> Array:
    into = [edges.indptr for kind, edges in session.graph.edges.items() if kind[2] == name]
    found: Array = sum((indptr[rows + 1] - indptr[rows] for indptr in into), np.zeros(len(rows), np.int64))
    return found


def _filled(plan: HostPlan, name: str, rows: Array, times: Array | None, count: int) -> Sampled:
    """The neighbourhoods of as many of the first rows as fit the working memory."""
    best = plan.neighbourhood(name, rows[:1], times)
    for _ in range(_TRIES):
        tried = plan.neighbourhood(name, rows[:count], times)
        load, held = plan.load_of(tried), len(tried.chunk.rows)
        if load <= plan.room and load > plan.load_of(best):
            best = tried
        # Vertices after those may have many more neighbours.
        count = max(1, min(2 * held, int(held * plan.room / load)))
        if count == held:
            break
    return best


def _read(sampled: Sampled, widths: dict[str, int], inference: Inference) -> tuple[Sampled, dict[str, Any]]:
    """A chunk on the device that computes, with the rows it reads: of the input, or of the level below."""
    x = {name: torch.empty(len(ids), widths[name], device=META) for name, ids in sampled.inputs.items() if len(ids)}
    sampled = sampled._replace(blocks=inference.engine.edges.attached(sampled.blocks))
    if is_gpu(META):
        sampled = sampled._replace(blocks=[on_device(block, META) for block in sampled.blocks])
    return sampled, x
