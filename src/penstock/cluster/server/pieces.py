"""A model's parameters cut into the servers' ranges: pieces of weights with their optimiser's state, and back."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.train.job import Job
from penstock.train.optimisers import make_optimiser

State = dict[str, Tensor]
"""An optimiser's, of one piece, by name: a number for every weight, or one for all. Empty before its first step."""


class ParameterPiece(NamedTuple):
    """Weights [first, last) of a parameter, all of them on one server."""

    parameter: int
    first: int
    last: int


def check_served(job: Job) -> None:
    """Refuse what needs more than a range of the weights."""
    tried = torch.nn.Parameter(torch.ones(3, 2))
    tried.grad = torch.ones(3, 2)
    optimiser = make_optimiser([tried], job)
    optimiser.step()
    cut_state(optimiser, [tried], [ParameterPiece(0, 0, 6)])


def shard_pieces(sizes: Sequence[int], servers: int) -> list[list[ParameterPiece]]:
    """The pieces of every server, for parameters of so many weights: ranges of all weights, as long as each other."""
    total, start = sum(sizes), 0
    bounds = [(total * k // servers, total * (k + 1) // servers) for k in range(servers)]
    found: list[list[ParameterPiece]] = [[] for _ in bounds]
    for number, size in enumerate(sizes):
        for pieces, (first, last) in zip(found, bounds, strict=True):
            if max(first, start) < min(last, start + size):
                pieces.append(ParameterPiece(number, max(first, start) - start, min(last, start + size) - start))
        start += size
    return found


def cut_state(
    optimiser: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], pieces: Sequence[ParameterPiece]
) -> list[State]:
    """The optimiser's state of every piece."""
    found = []
    for piece in pieces:
        parameter = parameters[piece.parameter]
        given = {k: torch.as_tensor(v) for k, v in optimiser.state.get(parameter, {}).items() if v is not None}
        for name, value in given.items():
            if value.dim() and value.shape != parameter.shape:
                raise PenstockError(
                    f"Optimiser {type(optimiser).__name__} needs whole matrices ({name!r}), and parameter servers hold"
                    " pieces of them: choose another optimiser, or set reduce: all-reduce.",
                    code="unsupported-combination",
                )
        found.append(
            {k: v.reshape(-1)[piece.first : piece.last].clone() if v.dim() else v.clone() for k, v in given.items()}
        )
    return found


def join_state(
    pieces: Sequence[ParameterPiece], states: Sequence[State], parameters: Sequence[torch.nn.Parameter]
) -> list[State]:
    """The state of every parameter, from those of all pieces in order."""
    found: list[State] = []
    for number, parameter in enumerate(parameters):
        own = [state for piece, state in zip(pieces, states, strict=True) if piece.parameter == number]
        found.append(
            {
                name: torch.cat([state[name] for state in own]).view_as(parameter) if value.dim() else value
                for name, value in (own[0] if own else {}).items()
            }
        )
    return found


def shape_of(piece: ParameterPiece, parameter: Tensor) -> list[int]:
    """Of a piece's weights: a row, or, of a parameter that is a single number, that number."""
    return [piece.last - piece.first] if parameter.dim() else []
