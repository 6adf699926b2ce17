"""All gradients of a model as one flat array, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from penstock.train.session import Session


def learned_parameters(session: Session) -> list[Parameter]:
    """The parameters of a session that are trained."""
    return [each for each in session.learned.parameters() if each.requires_grad]


def are_finite(parameters: Sequence[Parameter]) -> bool:
    """Whether no gradient that some parameters have is infinite or NaN."""
    found = [each.grad.isfinite().all() for each in parameters if each.grad is not None]
    return not found or bool(torch.stack(found).all())


class FlatGradients:
    """Some parameters, one behind the other, and room for a few numbers more.

    `numbers` are on the host, where whoever sums them reads them, or `on_device`: where the parameters are. Between a
    GPU and the host they are copied at once, not parameter by parameter.
    """

    def __init__(self, parameters: Sequence[Parameter], more: int, on_device: bool = False) -> None:
        self.parameters = list(parameters)
        self.sizes = [p.numel() for p in self.parameters]
        self.count = sum(self.sizes)
        device = next((parameter.device for parameter in self.parameters), torch.device("cpu"))
        self._near = torch.zeros(self.count + more, dtype=torch.float32, device=device)
        self._copied = device.type != "cpu" and not on_device
        self.numbers = torch.zeros(self._near.shape, pin_memory=True) if self._copied else self._near
        self.present = [False] * len(self.sizes)
        """Whether a parameter had a gradient when they were taken; some have none in a batch without their edges."""

    @property
    def more(self) -> Tensor:
        """The numbers behind the gradients."""
        return self.numbers[self.count :]

    def set_more(self, values: Sequence[float]) -> None:
        """Write the numbers behind the gradients."""
        self.more.copy_(torch.tensor(values, dtype=torch.float32))

    def take_gradients(self) -> None:
        """From the parameters; zeros where one has none."""
        self.present = [parameter.grad is not None for parameter in self.parameters]
        for part, parameter in zip(self._parts(), self.parameters, strict=True):
            if parameter.grad is None:
                part.zero_()
            else:
                part.copy_(parameter.grad.reshape(-1))
        self._fetch()

    def give_gradients(self, present: list[bool]) -> None:
        """To the parameters that any worker has one for: an optimiser passes over the others."""
        self._bring()
        for part, parameter, there in zip(self._parts(), self.parameters, present, strict=True):
            if not there:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))

    def take_weights(self) -> None:
        """Copy the parameters into the flat array."""
        for part, parameter in zip(self._parts(), self.parameters, strict=True):
            part.copy_(parameter.detach().reshape(-1))
        self._fetch()

    def give_weights(self) -> None:
        """Copy the flat array into the parameters."""
        self._bring()
        with torch.no_grad():
            for part, parameter in zip(self._parts(), self.parameters, strict=True):
                parameter.copy_(part.view_as(parameter))

    def _parts(self) -> list[Tensor]:
        return list(torch.split(self._near[: self.count], self.sizes))

    def _fetch(self) -> None:
        if self._copied:
            self.numbers[: self.count].copy_(self._near[: self.count])

    def _bring(self) -> None:
        if self._copied:
            self._near[: self.count].copy_(self.numbers[: self.count])
