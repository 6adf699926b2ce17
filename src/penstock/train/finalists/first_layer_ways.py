"""`first_layer: auto`: ways of reading the first layer's inputs that need nothing to be placed anew."""

from typing import Any

from penstock.cost.model import CostModel
from penstock.pipeline.row_reader import PlainReading
from penstock.pipeline.schedule import Schedule
from penstock.train.finalists.finalist import Finalist, OpenField
from penstock.train.finalists.predicted_steps import PredictedSteps, closest
from penstock.train.first_layer.way import FirstLayerWay, reasons_against
from penstock.train.first_layer.ways import WAYS, first_layer_reader
from penstock.train.session import Session


def _is_open(session: Session) -> bool:
    return session.job.first_layer == "auto" and bool(_others(session))


def _others(session: Session) -> list[FirstLayerWay]:
    """What can be done instead of `auto`: on the host what gives the same bits, beside a GPU what the host reads."""
    on_host = session.inputs.device.type == "cpu"
    if session.placed is not None and session.placed.decision.residence.features != "host":
        return []
    if on_host and _impossible(WAYS["auto"], session):
        # Rows are then read as they are in any case.
        return []
    return [
        way for way in WAYS.values() if way.on_host and way.rounds_as_auto == on_host and not _impossible(way, session)
    ]


def _impossible(way: FirstLayerWay, session: Session) -> list[str]:
    return reasons_against(way, session.job, session.graph, session.model, session.inputs)


def _finalists(session: Session, model: CostModel) -> list[Finalist]:
    if session.inputs.device.type == "cpu" and not _aggregates(session):
        return [Finalist("auto")]
    steps = PredictedSteps(session, model)
    found = []
    for name, way in {"auto": _auto(session), **{way.name: way for way in _others(session)}}.items():
        predicted = None if way.planned is None else steps.seconds(way.planned, way.name)
        found.append(Finalist(name, predicted))
    return closest(found)


def _auto(session: Session) -> FirstLayerWay:
    """The way that `auto` takes for the batches of a session."""
    return WAYS["aggregate" if session.inputs.device.type == "cpu" else "gather"]


def _aggregates(session: Session) -> bool:
    """Whether `auto` does anything else than reading rows, by the first batch."""
    task, job, inputs = session.task, session.job, session.inputs
    batch = task.sample(next(Schedule(task.items, task.batch_size, job.seed).from_position()))
    return not any(
        isinstance(inputs.reader.reading(batch, name, source), PlainReading) for name, source in inputs.sources.items()
    )


def _take(session: Session, value: Any) -> None:
    session.job = session.job.model_copy(update={"first_layer": value})
    session.inputs.read_by(first_layer_reader(session.job, session.graph, session.model, session.inputs))
    if session.placed is not None:
        # Triton is imported where there is a device for it.
        from penstock.train.device.placed_graph import bring_batches

        bring_batches(session, session.placed)


FIRST_LAYER = OpenField("first_layer", _is_open, _finalists, _take)
