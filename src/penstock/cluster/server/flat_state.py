"""An optimiser's state for a row of weights, made from its state for a model's parameters, and back."""

from typing import Any

import torch
from torch import Tensor

from penstock.errors import PenstockError

State = dict[str, Tensor]
"""By name: a number for every weight, or one for all."""


def flattened(optimiser: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> State:
    """The state of all parameters, one behind the other; empty before the first step."""
    states: list[dict[str, Any]] = [optimiser.state.get(parameter, {}) for parameter in parameters]
    found: State = {}
    for name in states[0] if states else ():
        values = [torch.as_tensor(state[name]) for state in states]
        shaped = all(value.shape == p.shape for value, p in zip(values, parameters, strict=True))
        if shaped and not all(value.dim() == 0 for value in values):
            found[name] = torch.cat([value.reshape(-1) for value in values])
        elif all(value.dim() == 0 and torch.equal(value, values[0]) for value in values):
            found[name] = values[0].clone()
        else:
            raise PenstockError(
                f"Optimiser {type(optimiser).__name__} looks at whole matrices ({name!r}), which parameter servers do"
                " not have: choose another, or reduce: all-reduce."
            )
    return found


def unflattened(state: State, parameters: list[torch.nn.Parameter]) -> list[dict[str, Tensor]]:
    """The state of every parameter."""
    found: list[dict[str, Tensor]] = []
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        found.append(
            {
                name: value.clone() if value.dim() == 0 else value[start:stop].reshape(parameter.shape).clone()
                for name, value in state.items()
            }
        )
        start = stop
    return found


def cut(state: State, first: int, last: int) -> State:
    """The state of a range of the weights."""
    return {name: value if value.dim() == 0 else value[first:last] for name, value in state.items()}


def joined(states: list[State]) -> State:
    """The state of all ranges, in order."""
    return {
        name: value if value.dim() == 0 else torch.cat([state[name] for state in states])
        for name, value in states[0].items()
    }


def shard_bounds(count: int, servers: int) -> list[tuple[int, int]]:
    """The range of weights of every server."""
    return [(count * k // servers, count * (k + 1) // servers) for k in range(servers)]
