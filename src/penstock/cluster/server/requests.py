"""Requests to a parameter server, validated before use."""

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from penstock.cluster.server.pieces import State
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store.parts.requests import Count, Factor, StoreRequest
from penstock.wire import Message

Name = Annotated[str, Field(min_length=1, max_length=64)]
Shape = Annotated[list[Count], Field(max_length=1)]

_STATE = (np.float32, np.float64, np.int64)
"""Kinds of numbers that an optimiser keeps; some count their steps in whole ones."""


class StepRequest(StoreRequest):
    """Something about a step, counted from 0."""

    step: Count


class Begin(StepRequest):
    """Arrays: the weights of all pieces, then the values of every piece's state, whose names these are."""

    shapes: list[Shape]
    names: list[Annotated[list[Name], Field(max_length=64)]]
    again: bool


class Gradients(StepRequest):
    """One array: gradients, for every piece whether it has one, and `more` numbers that are summed as well."""

    rate: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    more: Annotated[int, Field(ge=0, le=64)]


class ShrinkShard(StepRequest):
    """What a step's gradients are multiplied by."""

    factor: Factor


def rank_of(sender: str, world: int) -> int:
    """The rank of a worker of the run; nobody else has gradients."""
    kind, _, rank = sender.partition("-")
    if kind != "worker" or not rank.isdecimal() or int(rank) >= world:
        raise PenstockError(
            f"{sender} is not one of the {world} workers: only they may send gradients.", code="not-permitted"
        )
    return int(rank)


def begun_with(message: Message, asked: Begin) -> tuple[Tensor, list[State]]:
    """The weights, and every piece's state."""
    sizes = [math.prod(shape) for shape in asked.shapes]
    named = [(name, size) for names, size in zip(asked.names, sizes, strict=False) for name in names]
    if len(asked.names) != len(sizes) or len(message.arrays) != 1 + len(named):
        raise PenstockError(
            f"A server with {len(sizes)} pieces was given {len(message.arrays)} arrays: send one for each piece.",
            code="malformed-message",
        )
    weights, *values = message.arrays
    fit = weights.shape == (sum(sizes),) and weights.dtype == np.float32
    fit &= all(v.shape in ((), (size,)) and v.dtype in _STATE for v, (_, size) in zip(values, named, strict=True))
    if not fit:
        raise PenstockError(
            "The weights or the optimiser's state do not have the sizes of this server's pieces.",
            code="malformed-message",
        )
    left = iter(values)
    return as_tensor(weights), [{name: as_tensor(next(left)) for name in names} for names in asked.names]


def gradients_in(message: Message) -> Tensor:
    """A worker's numbers; how many there must be, the shard knows."""
    if len(message.arrays) != 1 or message.arrays[0].ndim != 1 or message.arrays[0].dtype != np.float32:
        found = [(array.shape, str(array.dtype)) for array in message.arrays]
        raise PenstockError(f"Gradients arrived as {found}: send a flat array of float32.", code="malformed-message")
    return as_tensor(message.arrays[0])


def as_tensor(array: Array) -> Tensor:
    """A copy: what came over the wire is a view of the message."""
    return torch.from_numpy(np.array(array))
