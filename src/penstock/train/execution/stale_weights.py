"""Weights of some updates ago, on which the gradients of a batch are computed (job field `staleness`).

With staleness N the update of step t uses the gradient of batch t at the weights before step t - N, or at the first
weights where there are not as many. Nothing depends on time: the same run gives the same bits, and what is kept of
older weights is part of a checkpoint. Running figures of normalisations are always the newest.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock.errors import PenstockError


class StaleWeights:
    """Weights before the last `updates` steps of a module, oldest first."""

    def __init__(self, module: torch.nn.Module, updates: int) -> None:
        self._parameters = list(module.parameters())
        self._updates = updates
        self._older: deque[list[torch.Tensor]] = deque(maxlen=max(1, updates))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Around the loss of a batch and its gradients: the parameters have old values, and afterwards the newest.

        Where the block ends well a step follows, and the newest values are remembered as those before it.
        """
        if not self._updates:
            yield
            return
        newest = [each.detach().clone() for each in self._parameters]
        if self._older:
            self._put(self._older[0])
        try:
            yield
        finally:
            self._put(newest)
        self._older.append(newest)

    def state(self) -> list[list[torch.Tensor]] | None:
        """What a checkpoint keeps."""
        return list(self._older) if self._updates else None

    def restore(self, state: Any) -> None:
        """Take what a checkpoint has kept."""
        self._older.clear()
        if not self._updates:
            return
        for weights in state or ():
            shapes = [tuple(each.shape) for each in weights]
            if shapes != [tuple(each.shape) for each in self._parameters]:
                raise PenstockError(
                    "The checkpoint holds older weights of another model: use the run's own job.",
                    code="mismatched-inputs",
                )
            self._older.append([each.to(own.device) for each, own in zip(weights, self._parameters, strict=True)])

    def _put(self, values: list[torch.Tensor]) -> None:
        # Through `data`: the backward pass reads old values that the forward pass has read, whatever autograd counts.
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data.copy_(value)
