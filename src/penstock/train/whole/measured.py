"""Measures the bins of a job's layers on this host, forward and backward, at several sizes: for a profile."""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.pipeline.schedule import Schedule
from penstock.train.batch_source import layers_of
from penstock.train.layerwise.host import Reach
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, LevelGradients, read_in_place
from penstock.train.whole.memory import Decision
from penstock.train.whole.plan import make_plan, vertices_by_level
from penstock.train.whole.prepared import PreparedBin, PreparedStep
from penstock.train.whole.steps import LayerPasses

_DIVISIONS = (2, 12, 72)
"""Numbers of bins into which a layer is divided; bins of one worker among several are small."""
_MEASURED = 4
"""Bins of each division that are computed at most: the first, the last, and some between."""


class MeasuredBin(NamedTuple):
    """A bin that was measured."""

    layer: int
    rows: int
    edges: int
    inputs: int
    """The number of distinct rows that it reads."""
    width_in: int
    width_out: int
    forward_s: float
    backward_s: float


def measure_bins(session: Session, repeats: int) -> Iterator[MeasuredBin]:
    """The median seconds of some bins over `repeats` computations, on the CPU, or on a GPU with everything it waits
    for.

    Bins of a layer are computed in turn, as in a step, so that large ones do not find their own rows in the CPU's
    cache. Gathering what a bin reads is included, and so is adding to the gradients of that. Rows between layers are
    random: their values do not affect the time.
    """
    if not getattr(session.model, "layerwise", False):
        raise PenstockError(
            "A module of your own is computed at once, not in bins: profile a model of the zoo.",
            code="unsupported-combination",
        )
    job, layers, messages = session.job, layers_of(session.job), session.task.messages
    assert messages is not None
    schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed)
    planned = next(schedule.from_position())
    planned = planned._replace(seeds=np.sort(planned.seeds))
    reach = Reach(messages, [list(messages.edges)] * layers, session.list_weight, edges=bool(session.inputs.edges))
    order, counts = vertices_by_level(reach, layers, session.task.readable(planned.seeds), job.scope == "all")
    for bins in _DIVISIONS:
        plan = make_plan(reach, layers, order, counts, [bins] * layers)
        decision = Decision([bins] * layers, "host", False, True, 0)
        step = PreparedStep(session, plan, decision, planned)
        passes = LayerPasses(session, planned.key.purpose("dropout"), step.constant)
        below: KeptLevel | None = None
        for layer, works in enumerate(step.bins):
            if layer:
                # As in workers' bins.
                last = layer == layers - 1 and job.jump == "none"
                read_in_place(session, works, session.task.out if last else job.hidden)
            measured = _MeasuredLayer(session, step, passes, layer, below)
            places = sorted({round(each) for each in np.linspace(0, len(works) - 1, _MEASURED)})
            yield from measured.measure([works[place] for place in places], repeats)
            below = measured.random_level()


class _MeasuredLayer:
    """One layer of a step, which reads features or random rows."""

    def __init__(
        self, session: Session, step: PreparedStep, passes: LayerPasses, number: int, below: KeptLevel | None
    ) -> None:
        self._session, self._step, self._passes, self._number, self._below = session, step, passes, number, below
        self._device, self._counts = session.inputs.device, step.plan.counts
        self._widths: dict[str, int] = {}
        self._width_in = 0

    def measure(self, works: Sequence[PreparedBin], repeats: int) -> Iterator[MeasuredBin]:
        """Measure some bins in turn, after one pass that compiles kernels and computes the aggregates that are kept."""
        turns = [[self._seconds(work) for work in works] for _ in range(repeats + 1)]
        self._session.optimiser.zero_grad(set_to_none=True)
        for work, seconds in zip(works, zip(*turns[1:], strict=True), strict=True):
            forward, backward = (statistics.median(each) for each in zip(*seconds, strict=True))
            counts = work.num_rows, int(work.block.num_edges), work.num_inputs
            yield MeasuredBin(self._number, *counts, self._width_in, max(self._widths.values()), forward, backward)

    def _seconds(self, work: PreparedBin) -> tuple[float, float]:
        """Seconds of a bin's forward and of its backward pass."""
        number = self._number
        level, below = self._step.level(number + 1), LevelGradients(self._counts[number], self._device)
        began = _now(self._device)
        known = self._passes.forward(number, work, self._fetch(number, work), level, True)
        computed = _now(self._device)
        assert known is not None
        above = LevelGradients(self._counts[number + 1], self._device)
        for name, rows in known.out.items():
            above.add(name, None, rows.new_ones(self._counts[number + 1][name], rows.shape[1]))
        read = {name: getattr(rows, "neighbours", rows) for name, rows in known.x.items()}
        for name, rows in read.items():
            if rows.requires_grad:
                below.add(name, None, rows.new_zeros(self._counts[number][name], rows.shape[1]))
        self._widths |= {name: rows.shape[1] for name, rows in known.out.items()}
        self._width_in = max(self._width_in, *(rows.shape[1] for rows in read.values()))
        resumed = _now(self._device)
        self._passes.backward(number, work, known, self._fetch, above, below)
        return computed - began, _now(self._device) - resumed

    def random_level(self) -> KeptLevel:
        """Random rows for the layer above, as wide as the measured bins' outputs."""
        level = self._step.level(self._number + 1)
        for name, count in self._counts[self._number + 1].items():
            # For a type with few vertices no bin may have been measured.
            width = self._widths.get(name, max(self._widths.values()))
            level.write(name, slice(0, count), torch.randn(count, width, device=self._device))
        return level

    def _fetch(self, number: int, work: PreparedBin) -> dict[str, Any]:
        below = self._below
        if below is None:
            return self._step.inputs(work)
        if work.in_place is not None:
            return {name: work.in_place.aggregated(below.kept(name)) for name in below.types}
        known = {name: places for name, places in work.places.items() if name in below.types}
        return {name: below.read(name, places).detach().requires_grad_() for name, places in known.items()}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()
