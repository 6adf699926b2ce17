"""What a parameter server knows: a range of the weights, their optimiser, and the gradients of the step under way."""

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.cluster.server.flat_state import State
from penstock.errors import PenstockError
from penstock.train.job import Job
from penstock.train.optimisers import make_optimiser
from penstock.train.state_file import read_state, write_state


class Shard:
    """Every step is in a file before any worker hears of it: a server that was killed goes on from there."""

    def __init__(self, job: Job, world: int, file: Path) -> None:
        self._job, self._world, self._file = job, world, file
        self._changed = threading.Condition()
        self._weights: torch.nn.Parameter | None = None
        self._optimiser: torch.optim.Optimizer | None = None
        self._step = -1
        self._more = torch.zeros(0)
        self._given: dict[int, Tensor] = {}
        if file.exists():
            self._take(read_state(file))

    def begin(self, step: int, weights: Tensor, state: State, again: bool) -> None:
        """Take weights and state as of a step; `again`: even if there are some already."""
        with self._changed:
            if self._weights is not None and not again:
                return
            self._take({"step": step, "weights": weights, "optimiser": state, "more": torch.zeros(0)})
            self._given = {}
            self._keep()
            self._changed.notify_all()

    def give(self, step: int, rank: int, rate: float, numbers: Tensor, more: int) -> None:
        """A worker's gradients of a step, with `more` numbers behind them that are summed as well.

        Again is no harm: in the step under way the later ones count, which are the same; before, none.
        """
        with self._changed:
            weights = self._ready()
            if len(numbers) != len(weights) + more:
                raise PenstockError(f"Gradients of {len(numbers) - more} weights do not fit {len(weights)}.")
            if step < self._step:
                return
            if step > self._step:
                raise PenstockError(f"Gradients of step {step} came before those of step {self._step}.")
            self._given[rank] = numbers
            if len(self._given) == self._world:
                self._do_step(rate, more)
                self._changed.notify_all()

    def after(self, step: int, patience: float) -> tuple[Tensor, Tensor] | None:
        """The weights after a step and the summed further numbers; None: not yet, after `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._step > step, patience)
            if self._step != step + 1:
                return None
            return self._ready().detach(), self._more

    def state(self) -> State:
        """The optimiser's."""
        with self._changed:
            self._ready()
            return self._optimiser_state()

    def _do_step(self, rate: float, more: int) -> None:
        """By rank, so that sums round the same in every run."""
        assert self._optimiser is not None and self._weights is not None
        total = self._given[0].clone()
        for rank in range(1, self._world):
            total += self._given[rank]
        count = len(self._weights)
        self._weights.grad = total[:count]
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self._more = total[count:]
        self._given, self._step = {}, self._step + 1
        self._keep()

    def _keep(self) -> None:
        state = {"step": self._step, "weights": self._ready(), "optimiser": self._optimiser_state(), "more": self._more}
        write_state(self._file, state, durable=False)

    def _take(self, state: dict[str, Any]) -> None:
        self._step, self._more = int(state["step"]), state["more"]
        self._weights = torch.nn.Parameter(state["weights"].clone())
        self._optimiser = make_optimiser([self._weights], self._job)
        if state["optimiser"]:
            self._optimiser.state[self._weights] = {name: v.clone() for name, v in state["optimiser"].items()}

    def _optimiser_state(self) -> State:
        assert self._optimiser is not None and self._weights is not None
        return {name: torch.as_tensor(value) for name, value in self._optimiser.state.get(self._weights, {}).items()}

    def _ready(self) -> Tensor:
        if self._weights is None:
            raise PenstockError("The parameter server has no weights yet: the first worker gives them.")
        return self._weights
