"""The examples of a step: which vertices' outputs the loss reads, and what it compares them with."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.host_carrier import as_tensors
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import MiniBatch
from penstock.sampling.key import BatchKey
from penstock.train.session import Session


class Examples(NamedTuple):
    """Of one step in one epoch."""

    batch: MiniBatch[Any]
    """Seeds and labels, where the model is computed."""
    places: dict[str, Tensor | None]
    """Where the seeds stand among the computed rows, by node type; None: they are these rows, in that order."""


class ExampleSource:
    """The examples of one step, whose items are the same in every epoch; negatives are drawn anew in each."""

    def __init__(
        self, session: Session, planned: Planned, order: dict[str, Array], counts: list[dict[str, int]]
    ) -> None:
        """`order` are the computed vertices by node type, `counts` how many of them stand in each level that the loss
        reads."""
        self._session, self._planned, self._order, self._counts = session, planned, order, counts
        self._fixed: Examples | None = None
        self._known: dict[str, Array] = {}

    def of(self, key: BatchKey) -> Examples:
        """The examples of the step in the key's epoch."""
        if self._fixed is not None:
            return self._fixed
        device, task = self._session.inputs.device, self._session.task
        batch: MiniBatch[Any] = task.examples(self._planned._replace(key=key))
        batch.labels = moved(as_tensors(batch.labels), device)
        found = Examples(batch, {name: self._places(name, rows, device) for name, rows in batch.seeds.items()})
        if not task.redraws:
            self._fixed = found
        return found

    def _places(self, name: str, rows: Array, device: torch.device) -> Tensor | None:
        order = self._order[name]
        if all(level[name] == len(rows) for level in self._counts) and np.array_equal(order[: len(rows)], rows):
            return None
        if name not in self._known:
            self._known[name] = np.empty(int(order.max(initial=-1)) + 1, np.int64)
            self._known[name][order] = np.arange(len(order))
        return torch.from_numpy(self._known[name][rows]).to(device)


def moved(labels: Any, device: torch.device) -> Any:
    """Labels brought to where the model is computed."""
    if isinstance(labels, dict):
        return {name: moved(each, device) for name, each in labels.items()}
    return labels.to(device)
