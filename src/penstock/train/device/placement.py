"""Where a session's graph goes on a device, decided and carried out; and other ways of reading it where it lies."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from penstock.pipeline.schedule import Schedule
from penstock.plan.residence import Place
from penstock.processes import default_threads
from penstock.progress import SILENT, Progress
from penstock.trace.allocations import UntraceableError
from penstock.trace.libraries import measure_libraries
from penstock.traced import FEATURES, TOPOLOGY, compiling
from penstock.train.device.batch_placement import ahead_sampler, steps_draw_ahead
from penstock.train.device.decision import PlacementDecision, decide, nothing_placed, unreadable
from penstock.train.device.memory import TrialMemory, row_type, tried_steps, way_of
from penstock.train.device.placed import Placed, drawing_on_device
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.device.traced import TracedMemory, traced_run
from penstock.train.device.trial import needs_trial, reason_against_replay
from penstock.train.first_layer.ways import WAYS, FirstLayerWay, reasons_against
from penstock.train.job import Job
from penstock.train.run_context import device_memory_of, device_peak
from penstock.train.session import TIMED, Session
from penstock.train.steps.triples import CAPTURED_TRIPLES, reasons_against_capture

# Where a session's graph goes on a device: decided by what its steps are predicted to need, and carried out.


def place(session: Session, training: bool, progress: Progress = SILENT) -> Placed:
    """Decide where everything goes, report why, place it there, and connect the pipeline to it."""
    job, task, device = session.job, session.task, session.inputs.device
    if session.inputs.on_gpu:
        measure_libraries(device)
    session.device_peak = device_peak(device)
    if not training:
        return bring_batches(session, Placed.of(session, nothing_placed(job)))
    schedule = Schedule(task.items, task.batch_size, job.draw_seed)
    decision = _decided(session, schedule)
    if not reasons_against_capture(session):
        decision = replace(decision, why=[*decision.residence.why, CAPTURED_TRIPLES])
    with _kernels_compiled(session, decision, schedule):
        placed = _placed_and_tried(session, decision, schedule, progress)
    decision = placed.decision
    open_fields = {"sample_on": (job.sample_on, decision.drawn_by), "capture": (job.capture, decision.captured_by)}
    session.decided_by |= {name: by for name, (value, by) in open_fields.items() if value == "auto"}
    session.inputs.sources.update(placed.tables)
    bring_batches(session, placed)
    # Captured steps draw for themselves; one more sampler would keep another table of all vertices.
    if decision.residence.topology != "host" and not decision.captured:
        _draw(session, placed, schedule, progress)
    return placed


def _draw(session: Session, placed: Placed, schedule: Schedule, progress: Progress) -> None:
    """Have a device draw the batches of launched steps: ahead in the thread that computes, else in threads."""
    if steps_draw_ahead(session, placed):
        placed.ahead = ahead_sampler(session, placed)
        placed.sample = placed.ahead.sample
        return
    placed.sample, who = drawing_on_device(placed, session.job, session.task, schedule)
    if who:
        placed.why.append(who)
        progress.note(who)
        session.decided_by["sample_on"] = TIMED


@contextmanager
def _kernels_compiled(session: Session, decision: PlacementDecision, schedule: Schedule) -> Iterator[None]:
    """Within it threads compile what captured steps will launch, which is found by tracing them once more."""
    device = session.inputs.device
    if not session.inputs.on_gpu or not decision.captured:
        yield
        return
    from penstock.gpu_kernels import can_compile_ahead, compiled_ahead

    if not can_compile_ahead():
        yield
        return
    with compiled_ahead(device, default_threads()):
        # What needs numbers, which a trace does not have, is compiled when it is launched.
        with suppress(UntraceableError), compiling():
            traced_run(session, decision, schedule, None)
        yield


def _placed_and_tried(session: Session, decision: PlacementDecision, schedule: Schedule, progress: Progress) -> Placed:
    """Place the graph as decided. Where captured steps turn out not to do what launched ones do, decide again."""
    if not (decision.captured and needs_trial(session)):
        return place_as_decided(session, decision, schedule, progress)
    before = dict(session.inputs.sources)
    placed = place_as_decided(session, decision, schedule)
    session.inputs.sources.update(placed.tables)
    reason = reason_against_replay(session, bring_batches(session, placed))
    if reason is None:
        placed.tell(progress)
        return placed
    session.inputs.sources = before
    decision = _decided(session, schedule, [reason])
    old, new = placed.decision.residence, decision.residence
    if (old.topology, old.features, old.cache_rows) != (new.topology, new.features, new.cache_rows):
        del placed
        return place_as_decided(session, decision, schedule, progress)
    placed.decide_again(session, decision)
    placed.tell(progress)
    return placed


def _decided(session: Session, schedule: Schedule, failed: Sequence[str] = ()) -> PlacementDecision:
    """Decide by tracing a run; where the model needs values, which a trace does not have, by two small steps."""
    try:
        return decide(session, schedule, TracedMemory(session, schedule), failed)
    except UntraceableError as error:
        tried = TrialMemory(session, tried_steps(session, row_type(session.job)), str(error))
        return decide(session, schedule, tried, failed)


# Other ways in which the host can provide the inputs of captured steps, with the graph where it lies.


def other_ways(session: Session, placed: Placed) -> list[FirstLayerWay]:
    """The ways that captured steps of a session could use instead of `auto`, without those that do
    not fit the device.
    """
    features = placed.decision.residence.features
    return [
        way
        for way in WAYS.values()
        if _reads(way, features)
        and way is not way_of(session.job, features)
        and not _impossible(session, way)
        and _has_room(session, placed, way)
    ]


def job_with(job: Job, placed: Placed, name: str) -> Job:
    """A job with another `first_layer`, whose features lie where they were placed."""
    pinned = WAYS[name].on_host and placed.decision.residence.features == "pinned"
    wish = {**job.placed.model_dump(exclude={"cache_rows"}), "features": "pinned"} if pinned else placed.wish
    return job.model_copy(update={"first_layer": name, "placement": wish})


def _reads(way: FirstLayerWay, features: Place) -> bool:
    """Whether a way can fill slots from features in a place; pinned rows that `auto` reads can be gathered as well."""
    if way.filler is None or features == "device":
        return False
    return features == "pinned" if way.on_both else not way.rounds_as_auto


def _impossible(session: Session, way: FirstLayerWay) -> list[str]:
    return unreadable(session, way) + reasons_against(way, session.job, session.model, session.inputs)


def _has_room(session: Session, placed: Placed, way: FirstLayerWay) -> bool:
    """Whether the device has room for steps of a way beside everything placed there."""
    task, job = session.task, job_with(session.job, placed, way.name)
    memory = TracedMemory(replace(session, job=job), Schedule(task.items, task.batch_size, job.draw_seed))
    try:
        found = memory.traced(replace(placed.decision, gathers=False)).categories
    except UntraceableError:
        return False
    free, total = device_memory_of(placed.device)
    needed = sum(size for name, size in found.items() if name not in (FEATURES, TOPOLOGY))
    return needed <= free - (1 - job.device_share) * total
