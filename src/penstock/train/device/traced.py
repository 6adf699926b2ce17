"""Predicts the memory of training on a GPU, without one: the run's own code is traced on meta tensors.

The graph is placed, the model tried on a few seeds, steps are captured or launched, and the model is validated, each by
the code that does it in a run. So the trace allocates what a run allocates, on the same streams and from the same
pools.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.pipeline.schedule import START, BatchPlan, Position, Schedule
from penstock.pipeline.stages import Loaded
from penstock.plan import Residence
from penstock.plan.residence import Place
from penstock.sampling.block import new_rows
from penstock.sampling.device.block import HOST_LISTS, Room
from penstock.sampling.device.sampler import DeviceSampler
from penstock.store.device.shards import current_gpu_group, share_bytes
from penstock.trace.allocations import GRADIENTS, Allocations, traceable
from penstock.trace.allocators import DevicePeak, device_peak
from penstock.trace.kernel_rates import kernel_rates
from penstock.traced import BATCHES, FEATURES, TOPOLOGY, memory_for
from penstock.train.device.batch_placement import DrawnSizes, ahead_sampler, steps_draw_ahead
from penstock.train.device.decision import PlacementDecision
from penstock.train.device.execution import CapturedExecution, DeviceExecution
from penstock.train.device.memory import Working, can_capture, row_type, stored_type
from penstock.train.device.placed import Placed, device_sampler
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.job import Job
from penstock.train.session import Session
from penstock.train.steps.engine import Engine
from penstock.train.steps.one_by_one import LearnAlone
from penstock.train.trace.fake_session import (
    LargestBatch,
    carried,
    enlarged,
    input_density,
    largest_batch,
    trace_last_inference,
    trace_validation,
    traced_session,
    try_small_batch,
)

_STEPS = 2
"""The first step allocates what later ones keep, so two are traced."""


class TracedMemory:
    """The `decision.MemoryModel` by a trace of the run."""

    method, untraced = "traced", ""
    validated = True
    """Whether the GPU computes validations by itself."""

    def __init__(self, session: Session, schedule: Schedule, drawn: BatchPlan | None = None) -> None:
        """`drawn`: the batches whose sizes are counted, if not those of the schedule."""
        self._session, self._schedule, self._drawn = session, schedule, drawn or schedule
        self._largest: LargestBatch | None = None
        self._known: dict[Any, DevicePeak] = {}
        self.peak = DevicePeak(0, 0, "", {})
        """The peak of the decision that was traced last."""

    @property
    def largest(self) -> LargestBatch:
        """The largest batch that the run is expected to draw."""
        if self._largest is None:
            batches = self._schedule.batches * max(1, self._session.job.epochs)
            self._largest = largest_batch(self._session, self._drawn, batches)
        return self._largest

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """What is reserved beside topology and `features`: those are on the device as far as is known."""
        job = self._session.job
        if features is None:
            wish = job.placed.features
            features = "device" if wish == "auto" or wish == "sharded" else wish
        on_host = room is None or job.sample_on == "host"
        topology: Place = "host" if on_host else "pinned" if job.placed.topology == "pinned" else "device"
        # Nothing that lies on the host can be captured: such a combination is not chosen, so its answer does not
        # matter.
        captured = captured and can_capture(job, topology, features)
        residence = Residence(topology, features, 0, 0, 0, [])
        working = Working(0, row_type(job), {})
        found = self.traced(PlacementDecision(residence, working, room, captured, in_place, [], gathers=gathers))
        parts = {name: size for name, size in found.categories.items() if name not in (FEATURES, TOPOLOGY)}
        graph = found.allocated - sum(parts.values())
        return Working(found.reserved - graph, row_type(job), parts)

    def predicted(self, decision: PlacementDecision) -> int:
        """The predicted peak of tensor memory, in bytes."""
        self.peak = self.traced(decision)
        return self.peak.allocated

    def traced(self, decision: PlacementDecision) -> DevicePeak:
        """The peak of a run with everything placed as decided."""
        residence = decision.residence
        places = residence.topology, residence.features, residence.cache_rows
        key = *places, residence.shared, decision.room, decision.captured, decision.in_place, decision.gathers
        if key not in self._known:
            largest = None if decision.captured else self.largest
            run = traced_run(self._session, decision, self._schedule, largest, self.validated)
            count = self._schedule.batches * self._session.job.epochs
            share = run.work.share(kernel_rates(), decision.captured, count)
            if "pinned" in places or decision.gathers:
                # A trace of kernels cannot know that the link to the host's memory bounds the step.
                share = None
            peak = device_peak(run.events)._replace(share=share, host_validates=run.host_validates)
            self._known[key] = _with_share(peak, self._session) if residence.shared else peak
        return self._known[key]


def _with_share(peak: DevicePeak, session: Session) -> DevicePeak:
    """The peak where a GPU has a share of the features, of which the trace has seen all."""
    group, graph, job = current_gpu_group(), session.graph, session.job
    assert group is not None
    tables = [graph.nodes[name].fields[field] for name, field in session.inputs.fields.items()]
    sizes = [table.size * stored_type(job, table).itemsize for table in tables]
    share = sum(share_bytes(size, group.count) for size in sizes)
    elsewhere = peak.categories[FEATURES] - share
    parts = peak.categories | {FEATURES: share}
    return peak._replace(allocated=peak.allocated - elsewhere, reserved=peak.reserved - elsewhere, categories=parts)


SUMMED_BYTES = 16
"""Bytes for each parameter: its place in the row that workers sum, and copies of it and of two moments."""


class SharedTrace(TracedMemory):
    """A trace of one of several GPUs, plus the row that workers sum and the copies to which a failed burst returns."""

    def __init__(
        self, session: Session, alone: Schedule, shares: BatchPlan, summed: int, validated: bool = True
    ) -> None:
        super().__init__(session, alone, shares)
        self._summed, self.validated = summed, validated

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        found = super().working(room, captured, in_place, features, gathers)
        return replace(found, bytes=found.bytes + self._summed, parts=found.parts | {"summed": self._summed})

    def predicted(self, decision: PlacementDecision) -> int:
        super().predicted(decision)
        peak, summed = self.peak, self._summed
        parts = peak.categories | ({GRADIENTS: peak.categories.get(GRADIENTS, 0) + summed} if summed else {})
        self.peak = peak._replace(allocated=peak.allocated + summed, reserved=peak.reserved + summed, categories=parts)
        return self.peak.allocated


def traced_run(
    session: Session,
    decision: PlacementDecision,
    schedule: Schedule,
    largest: LargestBatch | None,
    validated: bool = True,
) -> Allocations:
    """Everything that a run allocates on a GPU, in order, and the work of its steps. `largest`: its largest batch,
    where steps are launched; `validated`: whether it computes validations by itself."""
    with traceable(), traced_session(session, input_density(session), True) as allocations:
        with allocations.during("placement"):
            placed = bring_batches(session, place_as_decided(session, decision, schedule))
            session.inputs.sources.update(placed.tables)
        planned = next(schedule.from_position())
        with allocations.during("trial of a few seeds"):
            try_small_batch(session, planned)
        if decision.captured:
            _trace_captured(session, placed, schedule, allocations)
        else:
            assert largest is not None
            _trace_launched(session, placed, largest, allocations, validated)
        return allocations


def _trace_captured(session: Session, placed: Placed, schedule: Schedule, allocations: Allocations) -> None:
    execution = CapturedExecution(session, placed)
    with allocations.during("captured step", step=True):
        steps = execution.steps(schedule, START, lambda _: 1, lambda *_: None)
        assert isinstance(steps, Engine)
        with steps:
            with allocations.during("start of an epoch"):
                steps.fill(Position(0, 0))
            trace_validation(session, execution.inference, allocations)
        trace_last_inference(session, execution.inference, allocations)


def _trace_launched(
    session: Session, placed: Placed, largest: LargestBatch, allocations: Allocations, validated: bool
) -> None:
    """Trace steps on the largest batch, while the pipeline's queues are full."""
    job = session.job
    execution = DeviceExecution(session, placed)
    learn = LearnAlone(session, execution.stale)
    draw = _drawing(session, placed, largest) if placed.topology is not None else None
    ahead = min(largest.batches - 1, job.transfer_depth + job.transfer_threads)
    drawn = job.sample_depth + job.drawing_threads + job.gather_depth + job.reading_threads
    if placed.ahead is not None:
        # The next batch is brought before a step is launched, and the one after it is in its slot.
        ahead, drawn = min(largest.batches - 1, 1), 0
    drawn = 0 if draw is None else min(largest.batches - 1 - ahead, drawn)
    with allocations.during("step"):
        queued = [draw(number) for number in range(drawn)] if draw is not None else []
        waiting = [carried(session, _next(largest, draw)) for _ in range(ahead)]
        for number in range(_STEPS):
            _drop_behind(largest.batches - 1 - number, waiting, queued)
            with allocations.during(f"step {number + 1}", step=True):
                loaded = carried(session, _next(largest, draw))
                learn(loaded)
                del loaded
        if validated:
            _drop_behind(_left_at_validation(job, largest), waiting, queued)
            trace_validation(session, execution.inference, allocations)
        del queued, waiting
        if validated:
            trace_last_inference(session, execution.inference, allocations)


def _drop_behind(left: int, *queues: list[Any]) -> None:
    """Shorten queues, the nearest first, to what they can hold when the run has only `left` batches to go."""
    for queue in queues:
        del queue[max(0, left) :]
        left -= len(queue)


def _left_at_validation(job: Job, largest: LargestBatch) -> int:
    """Batches of the run that remain at its first validation."""
    epochs = max(1, job.epochs)
    first = min(epochs, job.evaluate_every) if job.evaluate_every > 0 else epochs
    return largest.batches // epochs * (epochs - first)


Draw = Callable[[int], Any]


def _next(largest: LargestBatch, draw: Draw | None) -> Loaded:
    return largest.loaded() if draw is None else Loaded(largest.planned, draw(0))


def _drawing(session: Session, placed: Placed, largest: LargestBatch) -> Draw:
    """The device's samplers, one for each thread that launches draws, which draw the largest batch."""
    threads = session.job.drawing_threads
    batch = enlarged(largest.batch, largest.factor)
    most = placed.largest_room(len(largest.planned.seeds))
    sizes = [min(size, bound) for size, bound in zip(placed.program.sizes(batch), most.sizes, strict=True)]
    (node_type,) = largest.batch.seeds
    samplers = list[DeviceSampler]()
    if steps_draw_ahead(session, placed):
        with memory_for(BATCHES):
            starts = [int(block.indptr[first]) for block, first in new_rows(batch.blocks)]
            placed.ahead = ahead_sampler(session, placed, DrawnSizes(sizes, starts))
    else:
        samplers = [device_sampler(placed, node_type, expected=sizes) for _ in range(threads)]

    def draw(number: int) -> Any:
        with memory_for(BATCHES):
            if placed.ahead is not None:
                made = placed.ahead.sample(largest.planned)
            else:
                made = samplers[number % threads].sample(largest.planned.seeds, largest.planned.key)
        for drawn, known in zip(made.blocks, batch.blocks, strict=True):
            for kind, part in drawn.relations.items():
                part.derived[HOST_LISTS] = known.relations[kind].indptr
        return made

    return draw
