"""Who draws a GPU's batches, and whether its steps are captured, by the machine's operator profile."""

from dataclasses import replace
from typing import NamedTuple

from penstock.cost.model import CostModel
from penstock.cost.step_prediction import BlockSizes
from penstock.errors import PenstockError
from penstock.plan import Residence
from penstock.plan.execution import BatchKind, ExecutionChoice, PipelineDepths, predict
from penstock.plan.execution.choice import Device
from penstock.plan.execution.first_layer import rows_of_place
from penstock.plan.execution.search import cheapest_orders
from penstock.sampling.device.room import Room
from penstock.train.job_batches import kind_of_batches, unknown_of
from penstock.train.session import Session

_WORTH = 1.05
"""How much slower the usual execution must be predicted to be, if another one is taken."""


class Comparison(NamedTuple):
    """Predicted seconds of a batch."""

    usual: float
    other: float

    @property
    def takes_other(self) -> bool:
        """Whether the other one is clearly faster."""
        return _WORTH * self.other < self.usual


class PredictedExecution:
    """Batches of a session on a GPU, as the cost model sees them."""

    def __init__(self, model: CostModel, session: Session) -> None:
        self._model, self._job, self._kind = model, session.job, kind_of_batches(session)

    def drawn_by_host(self, residence: Residence, captured: bool) -> Comparison | None:
        """Batches that the device draws, in steps that are captured or not, beside batches that the host draws."""
        usual = self._seconds(self._kind, "cuda", residence, captured)
        other = self._seconds(self._kind, "cpu", residence, captured=False)
        return None if usual is None or other is None else Comparison(usual, other)

    def launched(self, residence: Residence, room: Room) -> Comparison | None:
        """Captured steps, which compute all that batches have room for, beside steps that are launched one by one."""
        usual = self._seconds(_padded(self._kind, room), "cuda", residence, captured=True)
        other = self._seconds(self._kind, "cuda", residence, captured=False)
        return None if usual is None or other is None else Comparison(usual, other)

    def _seconds(self, kind: BatchKind, drawn_by: Device, residence: Residence, captured: bool) -> float | None:
        """None where an operator was not measured."""
        on_host, job = residence.features == "host", self._job
        choice = ExecutionChoice(
            "cuda",
            drawn_by,
            residence.features,
            "gather" if on_host else "device",
            cheapest_orders(self._model, self._kind, "cuda"),
            residence.cache_rows,
            job.drawing_threads,
            launched=not captured,
        )
        depths = PipelineDepths(job.sample_depth, job.gather_depth, job.transfer_depth)
        try:
            gathers = captured and "gathered" in job.row_paths and self._model.knows("host_gather", "cuda")
            way = rows_of_place(on_host, gathers)
            return predict(self._model, kind, choice, way, depths).seconds
        except PenstockError as error:
            if error.code != "missing-data":
                raise
            return None


def predicted_execution(model: CostModel | None, session: object) -> PredictedExecution | None:
    """None where the machine's drawing on a GPU was not measured, or the session's batches are not known."""
    if model is None or not isinstance(session, Session) or not model.knows("sample", "cuda") or unknown_of(session):
        return None
    return PredictedExecution(model, session)


def _padded(kind: BatchKind, room: Room) -> BatchKind:
    """Batches that fill their room."""
    pairs = zip(room.rows[1:], room.rows[:-1], room.edges, strict=True)
    blocks = [
        BlockSizes(src, dst, edges, *_grown(known, edges))
        for (src, dst, edges), known in zip(list(pairs)[::-1], kind.blocks, strict=True)
    ]
    return replace(kind, blocks=tuple(blocks))


def _grown(block: BlockSizes, edges: int) -> list[float | None]:
    """What else is known of a block, for more edges."""
    return [None if size is None else size * edges / max(1, block.edges) for size in block[3:]]
