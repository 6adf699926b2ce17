"""The predicted seconds of a session's batches under one finalist."""

from collections.abc import Sequence

from penstock.cost.model import CostModel
from penstock.errors import PenstockError
from penstock.nn.order_costs import Order
from penstock.plan.execution import BatchKind, ExecutionChoice, PipelineDepths, predict
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.first_layer import WayWork
from penstock.plan.execution.search import cheapest_orders
from penstock.train.finalists.finalist import Finalist
from penstock.train.job_batches import kind_of_batches, unknown_of
from penstock.train.session import Session

_FAR = 1.6
"""A finalist that is predicted to take so many times as long as the fastest is not timed. What the cost model predicts
worst took up to 1.6 times as long as predicted."""
FAR_CAPTURED = 4.0
"""The same for captured steps whose slots the host fills: what all of its threads do was up to three times as fast as
predicted."""
_MOST = 3


class PredictedSteps:
    """Batches of a session, as the cost model sees them."""

    def __init__(self, session: Session, model: CostModel) -> None:
        self._session, self._model = session, model
        self._kind: BatchKind | None = None if unknown_of(session) else kind_of_batches(session)

    def orders(self) -> tuple[Order, ...] | None:
        """Of every layer, the order of its products: the one that the job asks for, or the cheapest."""
        if self._kind is None:
            return None
        asked = self._session.job.order
        cheapest = cheapest_orders(self._model, self._kind, self._device)
        given = asked if isinstance(asked, list) else [asked] * len(cheapest)
        return tuple(own if own != "auto" else best for own, best in zip(given, cheapest, strict=True))

    def seconds(
        self,
        way: WayWork,
        first_layer: str,
        orders: Sequence[Order] | None = None,
        groups: int | None = None,
        features: Features = "host",
        cache_rows: int = 0,
    ) -> float | None:
        """Of a batch whose features lie somewhere; None where the cost model does not know all operators."""
        if self._kind is None:
            return None
        job = self._session.job
        if self._is_captured and way(self._kind).filled and not self._model.knows("host_gather", "cuda"):
            # One thread that prepares batches for a pipeline tells nothing of all threads that fill slots.
            return None
        known = self.orders() if orders is None else tuple(orders)
        assert known is not None
        choice = ExecutionChoice(
            self._device,
            self._drawn_by,
            features,
            first_layer,
            known,
            cache_rows,
            sample_threads=job.drawing_threads,
            groups=max(1, job.groups) if groups is None else groups,
            launched=self._session.placed is not None and not self._is_captured,
        )
        depths = PipelineDepths(job.sample_depth, job.gather_depth, job.transfer_depth)
        try:
            return predict(self._model, self._kind, choice, way, depths).seconds
        except PenstockError as error:
            if error.code != "missing-data":
                raise
            return None

    @property
    def _is_captured(self) -> bool:
        placed = self._session.placed
        return placed is not None and placed.is_captured

    @property
    def _device(self) -> Device:
        return "cpu" if self._session.placed is None else "cuda"

    @property
    def _drawn_by(self) -> Device:
        placed = self._session.placed
        if placed is None:
            return "cpu"
        # Captured steps draw for themselves where the device has the lists.
        return "cuda" if placed.sample is not None or (self._is_captured and placed.topology is not None) else "cpu"


def closest(finalists: Sequence[Finalist], far: float = _FAR) -> list[Finalist]:
    """The first and those that may be faster: at most three, and none that is predicted to take `far` times as long."""
    first, *others = finalists
    known = [each.predicted for each in finalists if each.predicted is not None]
    if known:
        most = far * min(known)
        others = [each for each in others if each.predicted is None or each.predicted <= most]
        others.sort(key=lambda each: -1.0 if each.predicted is None else each.predicted)
    return [first, *others[: _MOST - 1]]
