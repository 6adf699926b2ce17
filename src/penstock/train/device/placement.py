"""Where a session's graph goes on a device: decided by what its steps are predicted to need, and carried out."""

from dataclasses import replace

from penstock.pipeline.schedule import Schedule
from penstock.progress import SILENT, Progress
from penstock.train.decided_by import TIMED
from penstock.train.device.decision import Decision, decide, nothing_placed
from penstock.train.device.device_sampling import drawing_on_device
from penstock.train.device.memory import TrialMemory, row_type
from penstock.train.device.placed import Placed
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.device.traced import TracedMemory
from penstock.train.device.trial import tried_steps
from penstock.train.device.triple_steps import CAPTURED_TRIPLES, reasons_against_capture
from penstock.train.run_context import device_peak
from penstock.train.session import Session
from penstock.train.trace.libraries import measure_libraries
from penstock.train.trace.untraceable import UntraceableError


def place(session: Session, training: bool, progress: Progress = SILENT) -> Placed:
    """Decide where everything goes, say why, put it there, and let batches find it."""
    job, task, device = session.job, session.task, session.inputs.device
    if device.type == "cuda":
        measure_libraries(device)
    session.device_peak = device_peak(device)
    if not training:
        return bring_batches(session, Placed.of(job, device, nothing_placed(job)))
    schedule = Schedule(task.items, task.batch_size, job.draw_seed)
    decision = _decided(session, schedule)
    if not reasons_against_capture(session):
        decision = replace(decision, why=[*decision.residence.why, CAPTURED_TRIPLES])
    placed = place_as_decided(session, decision, schedule, progress)
    open_fields = {"sample_on": (job.sample_on, decision.drawn_by), "capture": (job.capture, decision.captured_by)}
    session.decided_by |= {name: by for name, (value, by) in open_fields.items() if value == "auto"}
    # Captured steps draw for themselves; a sampler beside them would keep a table of all vertices.
    if decision.residence.topology != "host" and not decision.captured:
        placed.sample, who = drawing_on_device(placed, job, task, schedule)
        if who:
            placed.why.append(who)
            progress.note(who)
            session.decided_by["sample_on"] = TIMED
    session.inputs.sources.update(placed.tables)
    return bring_batches(session, placed)


def _decided(session: Session, schedule: Schedule) -> Decision:
    """By a traced run; where the model asks for numbers, which a trace does not have, by two small steps."""
    try:
        return decide(session, schedule, TracedMemory(session, schedule))
    except UntraceableError as error:
        tried = TrialMemory(session, tried_steps(session, row_type(session.job)), str(error))
        return decide(session, schedule, tried)
