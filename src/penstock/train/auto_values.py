"""What is decided for a job: batches in a group, threads that sample and gather, the order of products."""

import numpy as np

from penstock.cost.model import CostModel, machine_order_costs, measured_model
from penstock.memory import available_mb
from penstock.nn.operator_costs import shipped_order_costs
from penstock.pipeline.grouped_batches import group_size
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution import ExecutionChoice, predict
from penstock.plan.execution.first_layer import rows_gathered
from penstock.plan.execution.search import cheapest_orders
from penstock.processes import default_threads
from penstock.store.disk_rows import DiskRows
from penstock.train.batch_source import layers_of
from penstock.train.dataset.inputs import memory_beside_lists
from penstock.train.execution.support import DEVICE_SAMPLING, demands_of, reasons_against
from penstock.train.execution_modes import needs_placement
from penstock.train.job import Job
from penstock.train.job_batches import depths_of, kind_of_batches, unknown_of
from penstock.train.session import OPERATOR_PROFILE, RULE, Session

# The groups of `groups: auto`, by this machine's operator profile where there is one.

_WORTH = 1.02
"""Groups are used only if training without them is predicted to be slower by at least this factor."""


def decide_groups(session: Session, model: CostModel | None = None) -> None:
    """Decide `groups: auto` on the host, by which only time changes; it stays where nothing was measured."""
    job = session.job
    if job.groups:
        return
    model = measured_model() if model is None else model
    if model is None or not session.inputs.on_host or unknown_of(session):
        session.decided_by["groups"] = RULE
        return
    size = predicted_groups(model, session)
    _decide(session, "groups", size, OPERATOR_PROFILE)


def _decide(session: Session, name: str, value: int, by: str) -> None:
    """Set a field of the session's job, and record that and how it was decided."""
    session.job = session.job.model_copy(update={name: value})
    session.decided[name], session.decided_by[name] = value, by


def predicted_groups(model: CostModel, session: Session) -> int:
    """The predicted number of batches in a group: 1, or as many as suit the threads, whichever is faster."""
    job, kind = session.job, kind_of_batches(session)
    order, threads = cheapest_orders(model, kind, "cpu"), job.threads or model.machine.cores
    sizes = [1, group_size(0, threads)]
    alone, grouped = (
        predict(
            model,
            kind,
            ExecutionChoice("cpu", "cpu", "host", "gather", order, sample_threads=job.drawing_threads, groups=size),
            rows_gathered,
            depths_of(job),
        ).seconds
        for size in sizes
    )
    return sizes[1] if _WORTH * grouped < alone else sizes[0]


# The threads that gather features from a disk.

_FROM_MAPPED, _FROM_DISK = 8, 16
"""Of a mapped file each waits for a page of its own, and rows come several times as fast as to one thread. Rows that
are read past the page cache are read together for the batches of all threads."""
_BATCHES_SHARE = 0.25
"""The share of the memory beside the neighbour lists that rows of these batches may take, by the first batch."""


def decide_gather_threads(session: Session) -> None:
    """Decide how many threads read features: several if they are mapped and exceed free memory; if they are read past
    the page cache, as many as have room for a batch each.
    """
    job = session.job
    if job.gather_threads or not needs_placement(job.sampler):
        return
    read = {name: source for name, source in session.inputs.sources.items() if isinstance(source, DiskRows)}
    if read:
        schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed)
        vertices = session.task.sample(next(schedule.from_position())).vertices
        size = sum(len(vertices[name]) * source.row_bytes for name, source in read.items() if name in vertices)
        most = int(_BATCHES_SHARE * memory_beside_lists(session.graph)) // max(1, size)
        _decide(session, "gather_threads", max(1, min(_FROM_DISK, most)), RULE)
        return
    fields = [nodes.fields[job.features] for nodes in session.graph.nodes.values() if job.features in nodes.fields]
    mapped = sum(rows.nbytes for rows in fields if isinstance(rows.base, np.memmap))
    if mapped > available_mb() << 20:
        _decide(session, "gather_threads", _FROM_MAPPED, RULE)


# The threads of `sample_threads: auto`, where a GPU computes what the host draws.

_MOST = 16
"""Upper bound on the threads: each has a batch in progress, which takes memory."""


def decide_sample_threads(session: Session) -> None:
    """Decide `sample_threads: auto` on a GPU; it stays `auto`, which means one thread, where the GPU draws by itself.

    A GPU waits for batches that one thread draws, while the host's other cores are idle. Batches are the same with any
    number of threads: only time and the host's memory depend on it.
    """
    job = session.job
    if job.sample_threads:
        return
    if is_drawn_by_host(session):
        # One core is left for launching steps.
        threads = min(_MOST, max(1, (job.threads or default_threads()) - 1))
        _decide(session, "sample_threads", threads, RULE)


def is_drawn_by_host(session: Session) -> bool:
    """Whether the host draws the batches that a GPU computes: the job says so, or a GPU cannot."""
    job = session.job
    drawn = needs_placement(job.sampler) and bool(layers_of(job))
    return drawn and (job.sample_on == "host" or bool(reasons_against(DEVICE_SAMPLING, demands_of(session))))


# The costs by which a run's layers choose their order of products: found when it starts, and kept in its job.


def with_order_costs(job: Job, built: bool = False) -> Job:
    """The job with the measured costs by which `order: auto` decides, if it has none yet.

    They are this machine's; if it was not measured, or the model was `built` before, those that come with Penstock. The
    two orders round differently, so the costs are kept in the job: the run decides alike on any machine that resumes
    it.
    """
    asked = job.order if isinstance(job.order, list) else [job.order]
    if "auto" not in asked or job.order_costs or job.module is not None:
        return job
    return job.model_copy(update={"order_costs": shipped_order_costs() if built else machine_order_costs()})
