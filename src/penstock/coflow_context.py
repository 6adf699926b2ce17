"""The batch and coflow that a thread works for; its requests carry them, so that shared links can order them.

A coflow is what belongs together and is done when its last message is there: all that one worker pulls for one batch,
one sum of gradients at all parameter servers, one push of embeddings to all their owners, the sums of a step's norms,
the rows between layers that workers send each other in a step, what a sampler reads before the first batch, what an
explanation of the model reads and tells to others.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

BATCH, GRADIENTS, EMBEDDINGS, NORMS, ROWS = "batch", "gradients", "embeddings", "norms", "rows"
PREPARATION, EXPLANATIONS = "preparation", "explanations"
"""Kinds of coflows."""
_THREAD = threading.local()
_BATCHES = 32
"""Bits that hold a batch's number in its epoch."""


class Coflow(NamedTuple):
    """The name of a coflow. Without a kind it is none."""

    kind: str = ""
    owner: str = ""
    """The task that it is for; empty: whichever asks."""
    turn: int = 0
    """The batch it is for; lower ones are needed sooner, 0 at once."""


NO_COFLOW = Coflow()


@contextmanager
def within_coflow(coflow: Coflow) -> Iterator[None]:
    """What this thread asks for in the block belongs to a coflow."""
    before = current_coflow()
    _THREAD.coflow = coflow
    try:
        yield
    finally:
        _THREAD.coflow = before


def within_batch(turn: int) -> AbstractContextManager[None]:
    """What this thread asks for in the block belongs to a batch; 0: to none."""
    return within_coflow(Coflow(BATCH, "", turn) if turn else NO_COFLOW)


def within_kind(kind: str) -> AbstractContextManager[None]:
    """What this thread asks for in the block belongs to a coflow of that kind, and to the batch it belonged to.

    Without a batch it belongs to none: all that a run asks that way would look like one coflow that never ends.
    """
    turn = current_batch()
    return within_coflow(Coflow(kind, "", turn) if turn else NO_COFLOW)


def current_coflow() -> Coflow:
    """The coflow of the calling thread."""
    found: Coflow = getattr(_THREAD, "coflow", NO_COFLOW)
    return found


def current_batch() -> int:
    """The calling thread's; 0 if it works for no batch."""
    return current_coflow().turn


def batch_order(epoch: int, batch: int) -> int:
    """The turn of a batch."""
    return (epoch << _BATCHES) + batch + 1
