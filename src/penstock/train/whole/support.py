"""What training on the whole graph supports."""

from collections.abc import Sequence
from dataclasses import replace

from penstock.train.execution.support import Support, demands_of, reasons_against
from penstock.train.session import Session
from penstock.train.whole.memory import Decision

WHOLE = Support(
    weights_and_times=True,
    compute_types=frozenset({"float32", "tf32", "bfloat16"}),
    grouped_batches=False,
    stale_gradients=False,
)
WHOLE_CAPTURED = replace(
    WHOLE,
    user_losses=False,
    learned_rows=False,
    edge_rows=False,
    norms=frozenset({"none", "layer"}),
    optimisers=frozenset({"Adam", "AdamW", "SGD"}),
    moving_momentum=False,
)
"""Steps on the whole graph that are captured once and replayed."""
WHOLE_SHARED = replace(WHOLE, user_modules=False)
"""Among workers, each of which computes rows of its own vertices layer by layer."""


def is_captured(session: Session, decisions: Sequence[Decision]) -> bool:
    """Whether a GPU's steps are captured: where all that they need stays there and is the same in every epoch."""
    retained = all(decision.retain for decision in decisions) and not session.task.redraws
    return session.job.capture and retained and not reasons_against(WHOLE_CAPTURED, demands_of(session))
