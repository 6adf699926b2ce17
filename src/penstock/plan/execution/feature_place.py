"""Where a GPU's features lie if they do not fit on it: what is predicted to be fastest."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cost.model import CostModel
from penstock.plan.execution.batch_kind import BatchKind
from penstock.plan.execution.choice import Device, ExecutionChoice, Features
from penstock.plan.execution.first_layer import rows_of_place
from penstock.plan.execution.prediction import predict
from penstock.plan.execution.search import cheapest_orders

_WORTH = 1.05
"""How much slower the usual place must be predicted to be, if another one is taken."""


@dataclass(frozen=True)
class FeaturePlace:
    """A place of features, and rows of them that are on the device too."""

    features: Features
    cache_rows: int
    seconds: float = 0.0
    """Predicted for each batch."""


def knows_transfers(model: CostModel) -> bool:
    """Whether a model tells how a GPU gets rows: by copies, and by reading pinned memory."""
    return all(model.knows(name, "cuda") for name in ("copy_up", "pinned_read", "gather"))


def fastest_place(
    model: CostModel,
    kind: BatchKind,
    sampled_by: Device,
    places: Sequence[tuple[Features, int]],
    gathers: bool = False,
) -> tuple[FeaturePlace, FeaturePlace]:
    """The place that a GPU's batches are predicted to be fastest with, and the usual one, which is the first.

    The usual one is taken unless another is clearly faster. On the host rows are gathered and copied; pinned ones are
    read by the GPU, or some of them gathered as well (`gathers`).
    """
    gathers = gathers and model.knows("host_gather", "cuda")
    order = cheapest_orders(model, kind, "cuda")
    found = list[FeaturePlace]()
    for features, rows in places:
        on_host = features == "host"
        choice = ExecutionChoice(
            "cuda", sampled_by, features, "gather" if on_host else "device", order, cache_rows=rows
        )
        way = rows_of_place(on_host, gathers)
        found.append(FeaturePlace(features, rows, predict(model, kind, choice, way).seconds))
    usual, best = found[0], min(found, key=lambda each: each.seconds)
    return (best if _WORTH * best.seconds < usual.seconds else usual), usual
