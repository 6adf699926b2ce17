"""What workers sum in each captured step, as one row of numbers on the device: gradients, and what they agree on."""

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.sampling.device.hops import Slot
from penstock.train.device.captured import make_step
from penstock.train.session import Session

_ALIGNED = 4
"""Gradients start at multiples of so many numbers, so that kernels read several at once."""


class Agreed(NamedTuple):
    """The numbers behind the gradients, summed over all workers: the same for each of them."""

    loss: float
    asked: float
    """Workers that had been asked to stop when the burst began."""
    pace: float
    """Seconds that a step took in the burst before."""
    ready: float
    """Workers whose gradients may be used."""
    lacking: float
    """Workers whose share of the batch, or of one before it, lacked room."""


_MORE = len(Agreed._fields)
_READY = Agreed._fields.index("ready")


class StepSum:
    """The row of the step under way, and what was agreed on in each step of the epoch; all at fixed places."""

    def __init__(self, session: Session, batches: int, world: int, device: torch.device) -> None:
        self._session, self._world = session, world
        parameters = [parameter for parameter in session.learned.parameters() if parameter.requires_grad]
        rooms = [-(-parameter.numel() // _ALIGNED) * _ALIGNED for parameter in parameters]
        self.numbers = torch.zeros(sum(rooms) + _MORE, dtype=torch.float32, device=device)
        parts = torch.split(self.numbers[:-_MORE], rooms)
        self._gradients = [
            (parameter, part[: parameter.numel()].view_as(parameter))
            for parameter, part in zip(parameters, parts, strict=True)
        ]
        self._more = self.numbers[-_MORE:]
        self._told = torch.zeros(2, dtype=torch.float32, device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._agreed = torch.zeros((batches, _MORE), dtype=torch.float32, device=device)
        self._seen = torch.zeros((batches, _MORE), dtype=torch.float32, pin_memory=device.type == "cuda")

    def begin(self, asked: bool, pace: float) -> None:
        """What this worker says in the steps of a burst."""
        self._told[0].fill_(float(asked))
        self._told[1].fill_(pace)

    def take(self, slot: Slot, loss: Tensor, skip: Tensor) -> None:
        """Put this worker's part of a step into the row. A parameter without a gradient has none on any worker."""
        given = [(part, parameter.grad) for parameter, part in self._gradients if parameter.grad is not None]
        torch._foreach_copy_([part for part, _ in given], [gradient for _, gradient in given])
        torch.cat([loss, self._told, (skip == 0).float(), slot.skip], out=self._more)
        # The next but one batch may be drawn into the slot before the sum is there.
        self._number.copy_(slot.number)

    def apply(self) -> None:
        """The optimiser's step with the sums; left out unless every worker's part may be used."""
        for parameter, part in self._gradients:
            parameter.grad = part if parameter.grad is not None else None
        make_step(self._session, (self._more[_READY : _READY + 1] != self._world).float())
        self._agreed.index_copy_(0, self._number, self._more.view(1, _MORE))

    def fetch(self, first: int, last: int) -> Tensor:
        """Launch the copy of what was agreed on in some batches to the host."""
        return self._seen[first:last].copy_(self._agreed[first:last], non_blocking=True)


class Snapshot:
    """The weights and the optimiser's state at the start of a burst, which a burst that fails goes back to."""

    def __init__(self, session: Session) -> None:
        states = [value for state in session.optimiser.state.values() for value in state.values()]
        self._live = [parameter.detach() for parameter in session.learned.parameters()]
        self._live += [value for value in states if isinstance(value, Tensor)]
        self._kept = [torch.empty_like(value) for value in self._live]

    def take(self) -> None:
        """Launch a copy of what is."""
        torch._foreach_copy_(self._kept, self._live)

    def put_back(self) -> None:
        """Launch its way back."""
        torch._foreach_copy_(self._live, self._kept)
