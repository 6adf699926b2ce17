"""All gradients of a model as one row of numbers, and back."""

import torch
from torch import Tensor

from penstock.train.session import Session


class Flat:
    """The learned parameters of a session, one behind the other, and room for a few numbers more."""

    def __init__(self, session: Session, more: int) -> None:
        self.parameters = [p for p in session.learned.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.parameters]
        self.count = sum(self.sizes)
        self.numbers = torch.zeros(self.count + more, dtype=torch.float32)
        self.present = [False] * len(self.sizes)
        """Whether a parameter had a gradient when they were taken; some have none in a batch without their edges."""

    @property
    def more(self) -> Tensor:
        """The numbers behind the gradients."""
        return self.numbers[self.count :]

    def take_gradients(self) -> None:
        """From the parameters; zeros where one has none."""
        self.present = [parameter.grad is not None for parameter in self.parameters]
        for part, parameter in zip(self._parts(), self.parameters, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad.reshape(-1))

    def give_gradients(self, present: list[bool]) -> None:
        """To the parameters that any worker has one for: an optimiser passes over the others."""
        for part, parameter, there in zip(self._parts(), self.parameters, present, strict=True):
            if not there:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))

    def take_weights(self) -> None:
        """From the parameters."""
        for part, parameter in zip(self._parts(), self.parameters, strict=True):
            part.copy_(parameter.detach().reshape(-1))

    def give_weights(self) -> None:
        """To the parameters."""
        with torch.no_grad():
            for part, parameter in zip(self._parts(), self.parameters, strict=True):
                parameter.copy_(part.view_as(parameter))

    def _parts(self) -> list[Tensor]:
        return list(torch.split(self.numbers[: self.count], self.sizes))
