"""The batch and coflow that a thread works for; its requests carry them, so that shared links can order them.

A coflow is what belongs together and is done when its last message is there: all that one worker pulls for one batch,
one sum of gradients at all parameter servers, one push of embeddings to all their owners, the sums of a step's norms.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

BATCH, GRADIENTS, EMBEDDINGS, NORMS = "batch", "gradients", "embeddings", "norms"
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
def working_for(coflow: Coflow) -> Iterator[None]:
    """What this thread asks for in the block belongs to a coflow."""
    before = own_coflow()
    _THREAD.coflow = coflow
    try:
        yield
    finally:
        _THREAD.coflow = before


def taking_turn(turn: int) -> AbstractContextManager[None]:
    """What this thread asks for in the block belongs to a batch; 0: to none."""
    return working_for(Coflow(BATCH, "", turn) if turn else NO_COFLOW)


def joining(kind: str) -> AbstractContextManager[None]:
    """What this thread asks for in the block belongs to a coflow of that kind, and to the batch it belonged to.

    Without a batch it belongs to none: all that a run asks that way would look like one coflow that never ends.
    """
    turn = own_turn()
    return working_for(Coflow(kind, "", turn) if turn else NO_COFLOW)


def own_coflow() -> Coflow:
    """The coflow of the calling thread."""
    found: Coflow = getattr(_THREAD, "coflow", NO_COFLOW)
    return found


def own_turn() -> int:
    """The calling thread's; 0 if it works for no batch."""
    return own_coflow().turn


def turn_of(epoch: int, batch: int) -> int:
    """The turn of a batch."""
    return (epoch << _BATCHES) + batch + 1
