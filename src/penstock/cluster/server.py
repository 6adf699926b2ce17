"""Parameter servers: each holds a range of the weights with their optimiser, and steps when all
gradients have arrived.
"""

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store.parts.requests import Count, Factor, StoreRequest
from penstock.train.job import Job
from penstock.train.optimisers import make_optimiser
from penstock.train.run_files.checkpoints import DamagedState, read_state, write_state
from penstock.wire.message import Message

# A model's parameters cut into the servers' ranges: pieces of weights with their optimiser's state, and the reverse.

State = dict[str, Tensor]
"""The optimiser's state of one piece, by name: a value for every weight, or one for all. Empty
before its first step.
"""


class ParameterPiece(NamedTuple):
    """Weights [first, last) of a parameter, all of them on one server."""

    parameter: int
    first: int
    last: int


def check_served(job: Job) -> None:
    """Refuse options that need more than a range of the weights."""
    tried = torch.nn.Parameter(torch.ones(3, 2))
    tried.grad = torch.ones(3, 2)
    optimiser = make_optimiser([tried], job)
    optimiser.step()
    cut_state(optimiser, [tried], [ParameterPiece(0, 0, 6)])


def shard_pieces(sizes: Sequence[int], servers: int) -> list[list[ParameterPiece]]:
    """The pieces of every server, for parameters of so many weights: ranges of equal length over all weights."""
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
    """The shape of a piece's weights: a row, or a scalar for a scalar parameter."""
    return [piece.last - piece.first] if parameter.dim() else []


# The state of a parameter server: a range of the weights, their optimiser, and the gradients of the current step.


class Shard:
    """Every step is written to a file before any worker sees it: a killed server continues from there."""

    def __init__(self, job: Job, world: int, file: Path) -> None:
        self._job, self._world, self._file = job, world, file
        self._changed = threading.Condition()
        self._begun = False
        self._pieces: list[torch.nn.Parameter] = []
        self._optimiser: torch.optim.Optimizer | None = None
        self._step = -1
        self._more = torch.zeros(0)
        self._given: dict[int, Tensor] = {}
        self._rate = 0.0
        self._summed: Tensor | None = None
        """The summed gradients of the current step, if they wait for a factor."""
        self._squares = 0.0
        """The sum of squares of the last step's gradients."""
        if file.exists():
            self._take_kept(read_state(file))

    def begin(
        self, step: int, shapes: Sequence[Sequence[int]], weights: Tensor, states: list[State], again: bool
    ) -> None:
        """Load the weights of all pieces and their states as of a step; `again`: even if there are some already."""
        with self._changed:
            if self._begun and not again:
                return
            pieces = torch.split(weights, [math.prod(shape) for shape in shapes])
            shaped = [piece.reshape(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)]
            self._take({"step": step, "weights": shaped, "optimiser": states, "more": torch.zeros(0)})
            self._given, self._summed = {}, None
            self._keep()
            self._changed.notify_all()

    def give(self, step: int, rank: int, rate: float, numbers: Tensor, more: int) -> None:
        """Store a worker's gradients of a step, a flag for every piece, and `more` numbers that are summed as well.

        May be repeated: gradients of the current step are replaced by equal ones; those of earlier steps are ignored.
        """
        with self._changed:
            self._check_ready()
            expected = self._count() + len(self._pieces) + more
            if len(numbers) != expected:
                raise PenstockError(
                    f"Gradients arrived as {len(numbers)} numbers where {expected} are expected.",
                    code="malformed-message",
                )
            if step < self._step:
                return
            if step > self._step:
                raise PenstockError(
                    f"Gradients of step {step} arrived before those of step {self._step}: send the steps in order.",
                    code="step-conflict",
                )
            self._given[rank], self._rate = numbers, rate
            if len(self._given) == self._world:
                self._summed = self._sum()
                if not self._job.clip:
                    self._do_step(1.0)
                self._changed.notify_all()

    def squares(self, step: int, patience: float) -> float | None:
        """The sum of the squares of a step's gradients, added over workers; None: not complete after `patience`
        seconds.

        With `clip`, a step is made when its factor is known, which follows from all servers' squares.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._step > step or self._summed is not None, patience)
            if self._step == step + 1:
                return self._squares
            return None if self._step != step or self._summed is None else self._squared(self._summed)

    def shrink(self, step: int, factor: float) -> bool:
        """Make a step with its gradients multiplied by a factor, unless it is made; False: its gradients are missing.

        May be repeated: all workers compute the same factor.
        """
        with self._changed:
            if step < self._step:
                return True
            if step > self._step or self._summed is None:
                return False
            self._do_step(factor)
            self._changed.notify_all()
            return True

    def after(self, step: int, patience: float) -> tuple[Tensor, Tensor] | None:
        """The weights after a step and the summed further numbers; None: not complete after `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._step > step, patience)
            if self._step != step + 1:
                return None
            self._check_ready()
            weights = [piece.detach().reshape(-1) for piece in self._pieces]
            return torch.cat([torch.zeros(0), *weights]), self._more

    def states(self) -> list[State]:
        """The optimiser's state of each piece."""
        with self._changed:
            self._check_ready()
            return self._states()

    def _sum(self) -> Tensor:
        """Sum by rank, so that sums round the same in every run."""
        total = self._given[0].clone()
        for rank in range(1, self._world):
            total += self._given[rank]
        return total

    def _squared(self, total: Tensor) -> float:
        return float(total[: self._count()].double().square().sum())

    def _do_step(self, factor: float) -> None:
        """Make the step. A piece for which no worker has a gradient is unchanged, like a parameter without one on one
        machine.
        """
        total, self._summed = self._summed, None
        assert total is not None
        self._squares = self._squared(total)
        count, pieces = self._count(), len(self._pieces)
        if factor != 1.0:
            total[:count] *= factor
        gradients = torch.split(total[:count], [piece.numel() for piece in self._pieces])
        present = total[count : count + pieces].tolist()
        for piece, gradient, there in zip(self._pieces, gradients, present, strict=True):
            piece.grad = gradient.view_as(piece) if there else None
        if self._optimiser is not None:
            for group in self._optimiser.param_groups:
                group["lr"] = self._rate
            self._optimiser.step()
        self._more = total[count + pieces :]
        self._given, self._step = {}, self._step + 1
        self._keep()

    def _keep(self) -> None:
        weights = [piece.detach() for piece in self._pieces]
        state = {"step": self._step, "weights": weights, "optimiser": self._states(), "more": self._more}
        state["squares"] = self._squares
        write_state(self._file, state, durable=False)

    def _take_kept(self, state: dict[str, Any]) -> None:
        try:
            self._take(state)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DamagedState(f"{self._file} is damaged (it does not hold a server's state: {error!r})") from None

    def _take(self, state: dict[str, Any]) -> None:
        self._step, self._more = int(state["step"]), state["more"]
        self._squares = float(state.get("squares", 0.0))
        self._pieces = [torch.nn.Parameter(weights.clone()) for weights in state["weights"]]
        # A model may have fewer weights than there are servers.
        self._optimiser = make_optimiser(self._pieces, self._job) if self._pieces else None
        self._begun = True
        for piece, own in zip(self._pieces, state["optimiser"], strict=True):
            if own and self._optimiser is not None:
                self._optimiser.state[piece] = {name: value.clone() for name, value in own.items()}

    def _states(self) -> list[State]:
        states: Any = {} if self._optimiser is None else self._optimiser.state
        known = [states.get(piece, {}) for piece in self._pieces]
        return [{k: torch.as_tensor(v) for k, v in state.items() if v is not None} for state in known]

    def _count(self) -> int:
        return sum(piece.numel() for piece in self._pieces)

    def _check_ready(self) -> None:
        if not self._begun:
            raise PenstockError(
                "The parameter server has no weights yet: the first worker sends them.", code="not-available"
            )


# Requests to a parameter server, validated before use.

Name = Annotated[str, Field(min_length=1, max_length=64)]
Shape = Annotated[list[Count], Field(max_length=1)]

_STATE = (np.float32, np.float64, np.int64)
"""The dtypes of optimiser states; some count their steps in integers."""


class StepRequest(StoreRequest):
    """Something about a step, counted from 0."""

    step: Count


class Begin(StepRequest):
    """Arrays: the weights of all pieces, then the values of every piece's state, with these names."""

    shapes: list[Shape]
    names: list[Annotated[list[Name], Field(max_length=64)]]
    again: bool


class Gradients(StepRequest):
    """One array: gradients, a flag for every piece, and `more` numbers that are summed as well."""

    rate: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    more: Annotated[int, Field(ge=0, le=64)]


class ShrinkShard(StepRequest):
    """The factor of a step's gradients."""

    factor: Factor


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
    """A worker's numbers; the shard checks how many there are."""
    if len(message.arrays) != 1 or message.arrays[0].ndim != 1 or message.arrays[0].dtype != np.float32:
        found = [(array.shape, str(array.dtype)) for array in message.arrays]
        raise PenstockError(f"Gradients arrived as {found}: send a flat array of float32.", code="malformed-message")
    return as_tensor(message.arrays[0])


def as_tensor(array: Array) -> Tensor:
    """A copy, since an array from the wire is a view of the message."""
    return torch.from_numpy(np.array(array))
