"""`order: auto`: the order of every layer's products by prediction, block by block, or one order in all layers."""

from typing import Any

from penstock.cost.model import CostModel
from penstock.nn.layer_table import layer_entry
from penstock.nn.order_costs import Order
from penstock.train.finalists.finalist import Finalist, OpenField
from penstock.train.finalists.predicted_steps import PredictedSteps, closest
from penstock.train.first_layer.ways import WAYS
from penstock.train.session import Session

_ONE_ORDER: tuple[Order, ...] = ("aggregate", "transform")


def _is_open(session: Session) -> bool:
    job = session.job
    # Other ways of reading the first layer's inputs fix its order.
    free = job.first_layer in ("auto", "device", "gather") and session.inputs.device.type == "cpu"
    return job.order == "auto" and free and bool(layer_entry(job.model).linear(job))


def _finalists(session: Session, model: CostModel) -> list[Finalist]:
    steps = PredictedSteps(session, model)
    cheapest, plain = steps.orders(), WAYS["gather"].planned
    assert plain is not None
    found = [Finalist("auto", steps.seconds(plain, "gather"))]
    for order in _ONE_ORDER:
        alike = [order] * len(cheapest or ())
        if list(cheapest or ()) != alike or not alike:
            found.append(Finalist(order, steps.seconds(plain, "gather", alike) if alike else None))
    return closest(found)


def _take(session: Session, value: Any) -> None:
    session.job = session.job.model_copy(update={"order": value})
    for layer in getattr(session.model, "convolutions", ()):
        layer.order = value


ORDER = OpenField("order", _is_open, _finalists, _take)
