"""Which batch a thread works for: what it asks of others travels in the batches' order where links are shared by it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THREAD = threading.local()
_BATCHES = 32
"""Bits that hold a batch's number in its epoch."""


@contextmanager
def taking_turn(turn: int) -> Iterator[None]:
    """What this thread asks for in the block belongs to a turn; lower ones are needed sooner, 0 at once."""
    before = own_turn()
    _THREAD.turn = turn
    try:
        yield
    finally:
        _THREAD.turn = before


def own_turn() -> int:
    """The calling thread's; 0 if it works for no batch."""
    return int(getattr(_THREAD, "turn", 0))


def turn_of(epoch: int, batch: int) -> int:
    """The turn of a batch."""
    return (epoch << _BATCHES) + batch + 1
