"""What messages of rows cost the processors of both their ends, as a profile measured them; and who pays it when.

A worker handles its messages with the processor that computes its bins. So what a bin sends is handled with the bin,
and what a layer receives is handled while the layer is computed, a share of it with each bin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.cost.profile import Profile
from penstock.graph.arrays import Array
from penstock.plan.workloads.bin_cost import LayerCost, fitted_terms
from penstock.plan.workloads.whole_section import WholeGraphExecution

MESSAGE = "message"
"""The operator of a profile that is a message, at both ends together."""
_NUMBER = 4
"""Bytes of a number of a row that travels."""


class MessageCost(NamedTuple):
    """Seconds of a processor that a message takes at both ends together, by its bytes."""

    fixed: float = 0.0
    byte: float = 0.0


def message_cost(profile: Profile) -> MessageCost:
    """The line through what a profile measured; messages that were not measured cost nothing."""
    measured = profile.measurements(MESSAGE, "cpu")
    if not measured:
        return MessageCost()
    at = np.array([[1.0, each.sizes["bytes"]] for each in measured])
    return MessageCost(*fitted_terms(at, np.array([each.seconds.mean for each in measured])))


class Handling(NamedTuple):
    """Seconds that workers handle messages, by layer [workers, bins]: with each bin of either pass."""

    forward: list[Array]
    backward: list[Array]


def handling_of(execution: WholeGraphExecution, costs: Sequence[LayerCost], message: MessageCost) -> Handling:
    """Of rows that a layer sends forward and reads, and of gradients on the way back."""
    layers = [layer.counted() for layer in execution.layers]
    found = Handling([np.zeros(layer.rows.shape) for layer in layers], [np.zeros(layer.rows.shape) for layer in layers])
    in_one = not (execution.sends_early or execution.starts_early)
    for number in range(len(layers) - 1):
        row_bytes = execution.share * costs[number].width_out * _NUMBER
        rows = _seconds(layers[number].sent, row_bytes, message, in_one, last=-1)
        _share(found.forward[number], found.forward[number + 1], rows)
        gradients = _seconds(layers[number + 1].returned, row_bytes, message, in_one, last=0)
        _share(found.backward[number + 1], found.backward[number], gradients)
    return found


def _seconds(rows: Array, row_bytes: float, message: MessageCost, in_one: bool, last: int) -> Array:
    """[sender, bin, reader]: a message after each bin that has rows for a reader, or one after the last."""
    if in_one:
        whole = np.zeros_like(rows)
        whole[:, last] = rows.sum(axis=1)
        rows = whole
    return (rows > 0) * message.fixed + rows * row_bytes * message.byte


def _share(senders: Array, readers: Array, seconds: Array) -> None:
    """Half of it is the sender's and half the reader's, with whose bins it is spread evenly."""
    senders += seconds.sum(axis=2) / 2
    readers += seconds.sum(axis=(0, 1))[:, None] / 2 / readers.shape[1]
