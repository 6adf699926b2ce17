"""The state of a parameter server: a range of the weights, their optimiser, and the gradients of the current step."""

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.cluster.server.pieces import State
from penstock.errors import PenstockError
from penstock.train.job import Job
from penstock.train.optimisers import make_optimiser
from penstock.train.state_file import DamagedState, read_state, write_state


class Shard:
    """Every step is in a file before any worker hears of it: a server that was killed goes on from there."""

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
        """The gradients of the step under way, where they wait for a factor."""
        self._squares = 0.0
        """Of the last step's gradients, summed."""
        if file.exists():
            self._take_kept(read_state(file))

    def begin(
        self, step: int, shapes: Sequence[Sequence[int]], weights: Tensor, states: list[State], again: bool
    ) -> None:
        """Take the weights of all pieces and their states as of a step; `again`: even if there are some already."""
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
        """A worker's gradients of a step; for every piece whether it has one; `more` numbers that are summed as well.

        Again is no harm: in the step under way the later ones count, which are the same; before, none.
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
        """The sum of the squares of a step's gradients, all workers' added up; None: not yet, after `patience` seconds.

        With `clip`, a step is made when its factor is known, which follows from all servers' squares.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._step > step or self._summed is not None, patience)
            if self._step == step + 1:
                return self._squares
            return None if self._step != step or self._summed is None else self._squared(self._summed)

    def shrink(self, step: int, factor: float) -> bool:
        """Make a step with its gradients multiplied by a factor, unless it is made; False: its gradients are not there.

        Again is no harm: all workers come to the same factor.
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
        """The weights after a step and the summed further numbers; None: not yet, after `patience` seconds."""
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
        """By rank, so that sums round the same in every run."""
        total = self._given[0].clone()
        for rank in range(1, self._world):
            total += self._given[rank]
        return total

    def _squared(self, total: Tensor) -> float:
        return float(total[: self._count()].double().square().sum())

    def _do_step(self, factor: float) -> None:
        """A piece that no worker has a gradient of stays as it is, as one without gradient does on one machine."""
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
