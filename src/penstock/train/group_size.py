"""The groups of `groups: auto`, by this machine's operator profile where there is one."""

from penstock.cost.machine_model import measured_model
from penstock.cost.model import CostModel
from penstock.pipeline.grouped_batches import group_size
from penstock.plan.execution import ExecutionChoice, PipelineDepths, predict
from penstock.plan.execution.first_layer import rows_gathered
from penstock.plan.execution.search import cheapest_orders
from penstock.train.decided_by import OPERATOR_PROFILE, RULE
from penstock.train.job_batches import kind_of_batches, unknown_of
from penstock.train.session import Session

_WORTH = 1.02
"""How much slower training without groups must be predicted to be, if there are to be groups."""


def decide_groups(session: Session, model: CostModel | None = None) -> None:
    """Decide `groups: auto` of a session on the host; it stays open, for the rule, where nothing was measured.

    Batches are the same with any groups, so that nothing but time depends on it.
    """
    job = session.job
    if job.groups:
        return
    model = measured_model() if model is None else model
    if model is None or session.inputs.device.type != "cpu" or unknown_of(session):
        session.decided_by["groups"] = RULE
        return
    size = predicted_groups(model, session)
    session.job = job.model_copy(update={"groups": size})
    session.decided["groups"] = size
    session.decided_by["groups"] = OPERATOR_PROFILE


def predicted_groups(model: CostModel, session: Session) -> int:
    """One, or as many batches as suit the threads, whichever is predicted to be faster."""
    job, kind = session.job, kind_of_batches(session)
    depths = PipelineDepths(job.sample_depth, job.gather_depth, job.transfer_depth)
    order, threads = cheapest_orders(model, kind, "cpu"), job.threads or model.machine.cores
    sizes = [1, group_size(0, threads)]
    alone, grouped = (
        predict(
            model,
            kind,
            ExecutionChoice("cpu", "cpu", "host", "gather", order, sample_threads=job.drawing_threads, groups=size),
            rows_gathered,
            depths,
        ).seconds
        for size in sizes
    )
    return sizes[1] if _WORTH * grouped < alone else sizes[0]
