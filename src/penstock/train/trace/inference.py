"""Traces the validation at the end of an epoch: exact inference on a device takes memory beside that of steps."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.device.block import on_device
from penstock.trace.allocations import ACTIVATIONS, META, Allocations
from penstock.traced import is_gpu, memory_for
from penstock.train.dataset.labels import in_any
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import Inference, evaluating
from penstock.train.layerwise.plan import Sampled
from penstock.train.session import Session

_READ = 2
"""Chunks whose rows are in a host's memory at once: the one being computed, and the next."""
_GROWING = 16
"""Chunks of whole neighbourhoods that are examined until their size is known: it doubles while it fits."""
_LOOKED_AT = 8
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
            looked_at = plan.some_chunks(number, _LOOKED_AT)
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
    ahead = [] if is_gpu(META) else others[-1:]
    held = [_read(sampled, widths, inference) for sampled in (computed, *ahead)]
    out = inference.engine.layer(number, *held[0])
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
    held = [_read(found, session.inputs.widths, inference) for _ in range(1 if is_gpu(META) else repeated)]
    out = inference.engine.forward(*held[0])
    outputs = [out if isinstance(out, torch.Tensor) else out.get(name)]
    del out
    if repeated > 1 and outputs[0] is not None:
        # The outputs of earlier chunks are in memory while later ones are computed, and are concatenated at the end.
        outputs = [outputs[0].new_empty(len(rows), *outputs[0].shape[1:])]
        inference.engine.forward(*held[0])
        outputs.append(torch.empty_like(outputs[0]))
    del outputs


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
        many = np.argsort(-_neighbours(session, name, rows), kind="stable")[:_LOOKED_AT]
        found += [plan.neighbourhood(name, rows[some : some + 1], times) for some in many.tolist()]
    if seen < len(rows) and size > 1:
        firsts = np.linspace(0, len(rows), _LOOKED_AT, endpoint=False).astype(np.int64)
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
