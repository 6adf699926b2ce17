"""The computation of a recorded step on a batch of vertices."""

from typing import Any

from torch import Tensor

from penstock.nn.drop import dropping
from penstock.train.session import Session
from penstock.train.steps.parts import StepGradients
from penstock.train.steps.sources import VertexSlot


class VertexCompute:
    """Computes the model's outputs for a batch's seeds, the task's loss, and the gradients."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def gradients(self, slot: VertexSlot, inputs: Any) -> StepGradients:
        session, drawn, batch = self._session, slot.slot, slot.batch
        for block in slot.blocks:
            # Discards what layers derived from the slot's last batch; lists that the draw derived are current.
            block.derived = {name: made for name, made in block.derived.items() if name in drawn.kept_lists}
        session.optimiser.zero_grad(set_to_none=True)
        x = inputs
        if session.inputs.scale is not None and isinstance(x, Tensor):
            x = session.inputs.scale(x.clone())
        with dropping(drawn.keys[-1:], batch.row_names), session.precision():
            loss = session.task.loss(session.model(batch.blocks, x), batch)
        skip = session.backward(loss, drawn.skip)
        return StepGradients(loss.detach().float().view(1), skip)
