"""`groups: auto`: batches drawn beside the training of others, or a group of them by all processors."""

from typing import Any

from penstock.cost.model import CostModel
from penstock.graph.blocks import default_threads
from penstock.pipeline.grouped_batches import group_size
from penstock.plan.execution.first_layer import rows_gathered
from penstock.train.finalists.finalist import Finalist, OpenField
from penstock.train.finalists.predicted_steps import PredictedSteps
from penstock.train.session import Session

_GROUPS = 3
"""Groups that a trial draws at least: the first is not counted."""


def _is_open(session: Session) -> bool:
    # A job that leaves it open has it decided already, by a profile or by the rule.
    return "groups" in session.decided_by and session.inputs.device.type == "cpu"


def _finalists(session: Session, model: CostModel) -> list[Finalist]:
    threads = session.job.threads or default_threads()
    steps, whole = PredictedSteps(session, model), group_size(0, threads)
    first = session.job.groups or whole
    found = [
        Finalist(size, steps.seconds(rows_gathered, "gather", groups=size), _GROUPS * whole + 1) for size in (1, whole)
    ]
    return sorted(found, key=lambda each: each.value != first)


def _take(session: Session, value: Any) -> None:
    session.job = session.job.model_copy(update={"groups": value})


GROUPS = OpenField("groups", _is_open, _finalists, _take)
