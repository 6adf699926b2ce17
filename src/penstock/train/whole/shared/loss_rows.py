"""The rows that every worker's part of the loss reads: its own, and of tasks on edges those at the other ends, too.

Every worker knows all examples of a step, and so which rows another one reads of it, without being told.
"""

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
from penstock.train.whole.examples import moved
from penstock.train.whole.shared.interfaces import CutLists, Rows

Places = dict[str, Tensor]


class LossRows(NamedTuple):
    """Of one step in one epoch, on one worker. Rows go by node type."""

    batch: MiniBatch[Any]
    """This worker's examples, with their labels where the model is computed."""
    share: float
    """What the task's loss of them is multiplied by, so that all workers' parts add up to the mean."""
    sent: list[Places]
    """By rank, which of this worker's rows a worker's loss reads: places among the rows that losses may read,"""
    read: list[Places]
    """and where in the rows of the batch's seeds each worker's rows stand, in the same order."""

    only_own: bool = False
    """Whether no loss reads another worker's rows, and this one's reads all its own as they stand."""

    @property
    def num_examples(self) -> int:
        """Vertices or edges of this worker."""
        return self.batch.num_seeds if self.batch.links is None else len(self.batch.links)


class LossRowSource:
    """The examples of one step, which are the same in every epoch, or drawn anew in each."""

    def __init__(self, session: Session, planned: Planned, cut: CutLists, rank: int, world: int, names: Rows) -> None:
        """`names` are the original numbers of this worker's rows that losses may read, ascending by node type."""
        self._session, self._planned, self._cut, self._names = session, planned, cut, names
        self._rank, self._world = rank, world
        self._fixed = None if session.task.redraws else self._made(planned)

    def of(self, key: BatchKey) -> LossRows:
        """What the step in the key's epoch reads."""
        return self._made(self._planned._replace(key=key)) if self._fixed is None else self._fixed

    def _made(self, planned: Planned) -> LossRows:
        task, device = self._session.task, self._session.inputs.device
        divided = task.divided(planned, self._owners, self._world)
        mine = divided[self._rank]
        task.label(mine)
        mine.labels = moved(as_tensors(mine.labels), device)
        # The loss of a share of edges is its part of the mean, and that of vertices the mean of its own.
        share = mine.num_seeds / len(planned.seeds) if mine.links is None else 1.0
        sent = [self._sent(theirs.seeds, device) for theirs in divided]
        read = [self._of_owner(rank, mine.seeds, device) for rank in range(self._world)]
        others = any(sent[rank] or read[rank] for rank in range(self._world) if rank != self._rank)
        as_they_stand = all(np.array_equal(self._names.get(kind, ()), rows) for kind, rows in mine.seeds.items())
        return LossRows(mine, share, sent, read, as_they_stand and not others)

    def _sent(self, seeds: Rows, device: torch.device) -> Places:
        places = {
            kind: np.searchsorted(self._names[kind], rows[self._owners(kind, rows) == self._rank])
            for kind, rows in seeds.items()
            if kind in self._names
        }
        return _filled(places, device)

    def _of_owner(self, rank: int, seeds: Rows, device: torch.device) -> Places:
        return _filled({kind: np.flatnonzero(self._owners(kind, rows) == rank) for kind, rows in seeds.items()}, device)

    def _owners(self, kind: str, vertices: Array) -> Array:
        return self._cut.ranks(kind, self._cut.numbers(kind, vertices))


def _filled(places: Rows, device: torch.device) -> Places:
    return {kind: torch.from_numpy(rows).to(device) for kind, rows in places.items() if len(rows)}
