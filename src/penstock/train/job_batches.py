"""The kind of batches that a job has: some are drawn, and what they are made of is counted."""

from functools import cache
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from penstock.cost.model import CostModel, counted_block, predicted_layers
from penstock.cost.operators import OPERATORS, Rung
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import offsets_of
from penstock.graph.folder import Graph
from penstock.nn.layer_table import LAYERS, model_options
from penstock.nn.zoo.model import layer_widths
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution import BatchKind, ExecutionChoice, PipelineDepths, mean_blocks, predict
from penstock.plan.execution.first_layer import WayWork
from penstock.plan.execution.search import within_run
from penstock.sampling.block import MiniBatch
from penstock.sampling.sampler_table import SAMPLERS
from penstock.store.rows import by_counts
from penstock.train.batch_source import layers_of
from penstock.train.job import Job
from penstock.train.session import Session

_DRAWN = 4
"""The number of a job's first batches that are counted."""
_COUNTED = 1 << 25
"""Neighbours that tell which vertices are in the most lists: enough, and counted within seconds."""
_RUN = 1 << 14
"""Neighbours that are counted one after the other, since lists may lie in a file."""
_KINDS: "WeakKeyDictionary[Graph, dict[str, BatchKind]]" = WeakKeyDictionary()
"""The kinds that are known of each graph, by what a job says of its batches."""


def kind_of_batches(session: Session) -> BatchKind:
    """The mean of a job's first batches, found once; jobs with unknown operators are refused."""
    _check_known(session)
    job, known = session.job, _KINDS.setdefault(session.graph, {})
    key = job.model_dump_json(exclude={"placement", "first_layer", "feature_paths", "order", "groups"})
    if key not in known:
        known[key] = _counted_kind(session)
    return known[key]


def _counted_kind(session: Session) -> BatchKind:
    job, task, graph = session.job, session.task, session.graph
    schedule = Schedule(task.items, task.batch_size, job.draw_seed)
    drawn: list[MiniBatch] = []
    for planned in islice(schedule.from_position(), min(_DRAWN, schedule.batches)):
        # An epoch's last batch may be smaller than the others.
        if not planned.last or not drawn:
            drawn.append(task.sample(planned))
    table = _features_of(session)
    fanouts = tuple(fanout for fanout in job.fanouts if isinstance(fanout, int))
    sizes = [sample_sizes(session, batch, fanouts) for batch in drawn]
    entry = LAYERS[job.model]
    return BatchKind(
        layer=job.model,
        blocks=mean_blocks([[counted_block(block) for block in batch.blocks] for batch in drawn]),
        widths=tuple(widths_of(session)),
        sample={name: sum(each[name] for each in sizes) / len(sizes) for name in sizes[0]},
        table_rows=len(table),
        number_bytes=table.dtype.itemsize,
        batches=schedule.batches,
        heads=job.heads,
        has_orders=entry.linear(job),
        own_rows=entry.aggregates(job) != "normalised",
        hit_rate=_hit_rates(graph, drawn),
    )


def predicted_seconds(
    model: CostModel, kind: BatchKind, choice: ExecutionChoice, way: WayWork, job: Job, in_run: bool = False
) -> float | None:
    """Predicted seconds of a job's batch executed as chosen, or `in_run` with what runs take beyond operators; None
    where an operator was not measured.
    """
    try:
        found = predict(model, kind, choice, way, depths_of(job))
        return (within_run(model, choice, found) if in_run else found).seconds
    except PenstockError as error:
        if error.code != "missing-data":
            raise
        return None


def depths_of(job: Job) -> PipelineDepths:
    """The depths of the queues of a job's pipeline."""
    return PipelineDepths(job.sample_depth, job.gather_depth, job.transfer_depth)


def _features_of(session: Session) -> Array:
    (table,) = (session.graph.nodes[name].fields[field] for name, field in session.inputs.fields.items())
    return table


def widths_of(session: Session) -> list[tuple[int, int]]:
    """The widths in and out of every layer of a job on vertices of one type."""
    job = session.job
    options = model_options(**{name: getattr(job, name) for name in ("model", "hidden", "jump")}, layers=layers_of(job))
    return layer_widths(options, _features_of(session).shape[1], session.task.out)


def unknown_of(session: Session, drawn: bool = True) -> list[str]:
    """What of a job the cost model does not know; empty where its batches can be predicted. Without `drawn`, how they
    are sampled does not matter.
    """
    job, reasons = session.job, list[str]()
    if session.inputs.no_table:
        reasons.append(session.inputs.no_table)
    if not getattr(session.model, "layerwise", False):
        reasons.append("the model is a module of the user's own")
    elif LAYERS[job.model].calls is None:
        reasons.append(f"steps of model {job.model} were not measured")
    if drawn and not (SAMPLERS[job.sampler].measured and all(isinstance(fanout, int) for fanout in job.fanouts)):
        reasons.append(f"sampler {job.sampler} as it is set was not measured")
    if session.inputs.edges:
        reasons.append("rows of edges were not measured")
    if not session.task.facts.predictable:
        reasons.append(f"task {session.task.name} has operators of its own")
    return reasons


def _check_known(session: Session) -> None:
    reasons = unknown_of(session)
    if reasons:
        raise PenstockError(
            f"The execution of this job cannot be predicted: {', '.join(reasons)}. Plan a job on the vertices of a"
            f" graph with one type, with sampler neighbour and one of the models {', '.join(predicted_layers())}.",
            code="unsupported-combination",
        )


def sample_sizes(session: Session, batch: MiniBatch, fanouts: tuple[int, ...]) -> dict[str, float]:
    """The sizes of operator `sample` for one batch."""
    rung = Rung(session.graph, batch.seeds[batch.node_type], fanouts, batch, batch.blocks[0], 1, 1)
    return OPERATORS["sample"].sizes(rung)


def _hit_rates(graph: Graph, drawn: list[MiniBatch]) -> Any:
    """By the rows of a cache, the share of the drawn batches' reads that vertices in the most lists have."""
    (edges,), count = graph.edges.values(), graph.num_nodes
    read = np.concatenate([next(iter(batch.vertices.values())) for batch in drawn])

    @cache
    def hit_rate(rows: int) -> float:
        if not rows:
            return 0.0
        cached = np.zeros(count, bool)
        cached[by_counts(np.diff(offsets_of(some_neighbours(edges.indices), count)), rows)] = True
        return float(cached[read].mean())

    return hit_rate


def some_neighbours(indices: Array) -> Array:
    """Neighbours from all parts of the lists: all of them, or runs at equal distances where there are many."""
    runs = _COUNTED // _RUN
    if len(indices) <= _COUNTED:
        return indices
    starts = np.linspace(0, len(indices) - _RUN, runs).astype(np.int64)
    return np.concatenate([indices[start : start + _RUN] for start in starts])
