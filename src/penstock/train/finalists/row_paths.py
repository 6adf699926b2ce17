"""`feature_paths: auto`: whether the host's turn in every captured batch is worth what it takes of it."""

from typing import Any

from penstock.cost.model import CostModel
from penstock.plan.execution.first_layer import rows_of_place
from penstock.train.finalists.finalist import Finalist, OpenField
from penstock.train.finalists.predicted_steps import FAR_CAPTURED, PredictedSteps, closest
from penstock.train.finalists.trial import CAPTURED_BATCHES
from penstock.train.session import Session

DEVICE_ALONE = ["cache", "pinned"]
"""The paths of a device that reads rows by itself."""


def _is_open(session: Session) -> bool:
    placed = session.placed
    return session.job.feature_paths == "auto" and placed is not None and placed.is_captured and placed.is_divided


def _finalists(session: Session, model: CostModel) -> list[Finalist]:
    assert session.placed is not None
    steps, residence = PredictedSteps(session, model), session.placed.decision.residence
    found = [
        Finalist(
            value,
            steps.seconds(
                rows_of_place(False, gathers), "device", features=residence.features, cache_rows=residence.cache_rows
            ),
            *CAPTURED_BATCHES,
        )
        for value, gathers in (("auto", True), (DEVICE_ALONE, False))
    ]
    return closest(found, FAR_CAPTURED)


def _take(session: Session, value: Any) -> None:
    # Triton is imported where there is a device for it.
    from penstock.train.device.placed_graph import divide_rows

    assert session.placed is not None
    session.job = session.job.model_copy(update={"feature_paths": value})
    divide_rows(session, session.placed, value == "auto")


FEATURE_PATHS = OpenField("feature_paths", _is_open, _finalists, _take)
