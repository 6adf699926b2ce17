"""`clip` where several workers train: the norm is that of all workers' gradients together.

Gradients of the model are summed by the workers or by servers, those of learnable rows by their owners. Everybody who
sums tells the squares to whoever asks, also of the step before, since some workers go on while others still ask. So
every worker comes to the same factor without a further meeting, and tells it to all who wait for it before it goes on.
"""

import math

import torch

from penstock.cluster.worker.inputs import PartedInputs
from penstock.train.session import Session

_TINY = 1e-6
"""As torch has it."""


def clip_with_owners(session: Session) -> None:
    """Shrink the model's gradients, which are summed already, together with those of learnable rows."""
    if not session.inputs.tables:
        torch.nn.utils.clip_grad_norm_(session.learned.parameters(), session.job.clip)
        return
    gradients = [p.grad for p in session.learned.parameters() if p.grad is not None]
    factor = clip_factor(session, sum(float(gradient.double().square().sum()) for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(factor)


def clip_factor(session: Session, squares: float) -> float:
    """What all gradients are multiplied by, the model's having these squares; the rows' owners are told."""
    inputs = session.inputs
    assert isinstance(inputs, PartedInputs)
    norm = math.sqrt(squares + inputs.squares())
    # As torch has it: what is no number makes all gradients none, which is heard of with the next loss.
    factor = norm if math.isnan(norm) else min(1.0, session.job.clip / (norm + _TINY))
    inputs.shrink(factor)
    return factor
