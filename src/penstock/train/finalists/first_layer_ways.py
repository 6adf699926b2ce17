"""`first_layer: auto`: ways of reading the first layer's inputs that need nothing to be placed anew."""

from typing import Any

from penstock.cost.model import CostModel
from penstock.pipeline.row_reader import PlainReading
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution.choice import Features
from penstock.plan.execution.first_layer import rows_aggregated, rows_of_place
from penstock.train.finalists.finalist import ENOUGH, FEWEST, Finalist, OpenField
from penstock.train.finalists.predicted_steps import FAR_CAPTURED, PredictedSteps, closest
from penstock.train.finalists.trial import CAPTURED_BATCHES
from penstock.train.first_layer.way import FirstLayerWay, reasons_against
from penstock.train.first_layer.ways import WAYS, first_layer_reader
from penstock.train.session import Session


def _is_open(session: Session) -> bool:
    return session.job.first_layer == "auto" and bool(_others(session))


def _others(session: Session) -> list[FirstLayerWay]:
    """What can be done instead of `auto`: on the host what gives the same bits, beside a GPU what the host reads."""
    placed, on_host = session.placed, session.inputs.device.type == "cpu"
    if placed is not None and placed.is_captured:
        # Triton is imported where there is a device for it.
        from penstock.train.device.other_ways import other_ways

        return other_ways(session, placed)
    if placed is not None and placed.decision.residence.features != "host":
        return []
    if on_host and placed is None and _impossible(WAYS["auto"], session):
        # Rows are then read as they are in any case.
        return []
    return [
        way for way in WAYS.values() if way.on_host and way.rounds_as_auto == on_host and not _impossible(way, session)
    ]


def _impossible(way: FirstLayerWay, session: Session) -> list[str]:
    return reasons_against(way, session.job, session.graph, session.model, session.inputs)


def _finalists(session: Session, model: CostModel) -> list[Finalist]:
    placed = session.placed
    if placed is None and not _aggregates(session):
        return [Finalist("auto")]
    steps = PredictedSteps(session, model)
    captured = placed is not None and placed.is_captured
    length = CAPTURED_BATCHES if captured else (FEWEST, ENOUGH)
    found = [Finalist("auto", _seconds_of_auto(session, steps), *length)]
    for way in _others(session):
        assert way.planned is not None
        features: Features = "pinned" if way.on_both else "host"
        found.append(Finalist(way.name, steps.seconds(way.planned, way.name, features=features), *length))
    return closest(found, FAR_CAPTURED) if captured else closest(found)


def _seconds_of_auto(session: Session, steps: PredictedSteps) -> float | None:
    """Predicted for what `auto` does."""
    placed = session.placed
    if placed is None:
        return steps.seconds(rows_aggregated, "aggregate")
    residence, gathers = placed.decision.residence, placed.decision.gathers
    way = rows_of_place(residence.features == "host", gathers)
    name = "gather" if residence.features == "host" else "device"
    return steps.seconds(way, name, features=residence.features, cache_rows=residence.cache_rows)


def _aggregates(session: Session) -> bool:
    """Whether `auto` does anything else than reading rows, by the first batch."""
    task, job, inputs = session.task, session.job, session.inputs
    batch = task.sample(next(Schedule(task.items, task.batch_size, job.draw_seed).from_position()))
    return not any(
        isinstance(inputs.reader.reading(batch, name, source), PlainReading) for name, source in inputs.sources.items()
    )


def _take(session: Session, value: Any) -> None:
    placed = session.placed
    if placed is None:
        session.job = session.job.model_copy(update={"first_layer": value})
    else:
        # Triton is imported where there is a device for it.
        from penstock.train.device.other_ways import job_with
        from penstock.train.device.placed_graph import bring_batches, fill_by_job

        session.job = job_with(session.job, placed, value)
    session.inputs.read_by(first_layer_reader(session.job, session.graph, session.model, session.inputs))
    if placed is not None:
        (fill_by_job if placed.is_captured else bring_batches)(session, placed)


FIRST_LAYER = OpenField("first_layer", _is_open, _finalists, _take)
