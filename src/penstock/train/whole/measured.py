"""What bins of a job's layers take on this host, forward and backward, at several sizes: for a profile."""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.pipeline.schedule import Schedule
from penstock.train.batch_source import layers_of
from penstock.train.layerwise.reach import Reach
from penstock.train.session import Session
from penstock.train.whole.memory import Decision
from penstock.train.whole.passes import LayerPasses
from penstock.train.whole.plan import make_plan, vertices_by_level
from penstock.train.whole.prepared import PreparedBin, PreparedStep

_DIVISIONS = (2, 6, 18)
"""Numbers of bins that a layer is divided into: sizes differ ninefold."""
_MEASURED = 4
"""Bins of each division that are computed, at most: the first, the last, and some between."""


class MeasuredBin(NamedTuple):
    """One bin that was computed."""

    layer: int
    rows: int
    edges: int
    width_in: int
    width_out: int
    forward_s: float
    backward_s: float


def measure_bins(session: Session, repeats: int) -> Iterator[MeasuredBin]:
    """The least seconds of so many computations of some bins: of the processor, or of a GPU with all that it waits for.

    Rows between layers are random: how long they take does not depend on them.
    """
    if not getattr(session.model, "layerwise", False):
        raise PenstockError(
            "A module of your own is computed at once, not in bins: profile a model of the zoo.",
            code="unsupported-combination",
        )
    job, layers, messages = session.job, layers_of(session.job), session.task.messages
    assert messages is not None
    schedule = Schedule(session.task.items, session.task.batch_size, job.seed)
    planned = next(schedule.from_position())
    planned = planned._replace(seeds=np.sort(planned.seeds))
    reach = Reach(messages, [list(messages.edges)] * layers, job.weight)
    order, counts = vertices_by_level(reach, layers, session.task.readable(planned.seeds), job.scope == "all")
    for bins in _DIVISIONS:
        plan = make_plan(reach, layers, order, counts, [bins] * layers)
        decision = Decision([bins] * layers, "host", False, True, 0)
        step = PreparedStep(session, plan, decision, planned)
        passes = LayerPasses(session, planned.key.purpose("dropout"), step.constant)
        widths: dict[str, int] = {}
        for layer, works in enumerate(step.bins):
            given = dict(widths)
            for place in sorted({round(each) for each in np.linspace(0, len(works) - 1, _MEASURED)}):
                found, widths = _measure(session, step, passes, layer, works[place], given, repeats)
                yield found


def _measure(
    session: Session,
    step: PreparedStep,
    passes: LayerPasses,
    layer: int,
    work: PreparedBin,
    given: dict[str, int],
    repeats: int,
) -> tuple[MeasuredBin, dict[str, int]]:
    device, seconds = session.inputs.device, []
    for _ in range(repeats + 1):
        x = step.inputs(work) if layer == 0 else _random_rows(work, given, device)
        began = _now(device)
        out = passes.compute(layer, work, x)
        computed = _now(device)
        read = [rows for rows in out.values() if rows.requires_grad]
        torch.autograd.backward(read, [torch.ones_like(rows) for rows in read])
        seconds.append((computed - began, _now(device) - computed))
    session.optimiser.zero_grad(set_to_none=True)
    # The first one compiles kernels, and aggregates what is kept.
    forward, backward = (min(each) for each in zip(*seconds[1:], strict=True))
    widths = {name: rows.shape[1] for name, rows in out.items()}
    read_width = max(rows.shape[1] for rows in x.values())
    edges = int(work.block.num_edges)
    return MeasuredBin(layer, work.num_rows, edges, read_width, max(widths.values()), forward, backward), widths


def _random_rows(work: PreparedBin, widths: dict[str, int], device: torch.device) -> dict[str, Tensor]:
    rows: dict[str, Any] = {name: len(ids) for name, ids in work.names.items() if name in widths}
    return {name: torch.randn(count, widths[name], device=device).requires_grad_() for name, count in rows.items()}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
