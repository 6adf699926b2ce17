"""The gradients of one step that ranks have pushed to the owner of an embedding, until the step is applied."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.store.parts.embedding_files import Push
from penstock.store.rows import check_rows


class PushMissing(PenstockError):  # noqa: N818
    """A step cannot be applied: not every rank's gradients are there."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="step-conflict")


class StagedGradients:
    """What ranks pushed for the current step of a table, and the factor that it is multiplied by, if there is one."""

    def __init__(self, name: str) -> None:
        """`name` is the table's, for errors."""
        self._name = name
        self.pushes: dict[int, Push] = {}
        """The pushes by rank."""
        self.factor: float | None = None
        self._total: tuple[Array, Array] | None = None

    def check(self, push: Push, rows: Array) -> None:
        """Refuse what cannot be gradients of `rows`."""
        check_rows(rows, push.ids)
        if len(push.ids) and not push.learned:
            raise PenstockError(
                f"Rank {push.rank} pushes rows of {self._name!r}, but its header says that it has none.",
                code="malformed-message",
            )
        if not 0 <= push.rank < push.world:
            raise PenstockError(
                f"Rank {push.rank} is not one of {push.world} ranks, which count from 0.", code="malformed-message"
            )
        if push.gradients.shape != (len(push.ids), rows.shape[1]) or push.gradients.dtype != np.float32:
            raise PenstockError(
                f"Gradients of {push.gradients.dtype} {push.gradients.shape} do not fit {len(push.ids)} rows of"
                f" {rows.shape[1]} float32 of {self._name!r}.",
                code="shape-mismatch",
            )

    def add(self, push: Push) -> None:
        """Take a rank's gradients, in place of those that it pushed before."""
        if any(other.world != push.world for other in self.pushes.values()):
            # The step is done again by more or fewer: nothing of the first attempt counts.
            self.pushes.clear()
        self.pushes[push.rank], self._total = push, None

    def clear(self) -> None:
        """What was staged is applied, or counts no more."""
        self.pushes.clear()
        self.factor = self._total = None

    def complete(self, step: int) -> list[Push]:
        """The pushes in order of rank, if there is one of every rank."""
        world = next((push.world for push in self.pushes.values()), 1)
        missing = [rank for rank in range(world) if rank not in self.pushes]
        if missing:
            who = ", ".join(map(str, missing))
            of = f" of {world}" if self.pushes else ""
            raise PushMissing(
                f"Step {step} of the embeddings of {self._name!r} cannot be applied: no gradients came from rank"
                f" {who}{of}. Do the step again."
            )
        return [self.pushes[rank] for rank in range(world)]

    def total(self, step: int) -> tuple[Array, Array]:
        """The rows that a step touches, and the gradient of each, summed over ranks; computed once."""
        if self._total is None:
            self._total = _summed(self.complete(step))
        return self._total


def sum_of_squares(total: Array) -> float:
    """Of gradients, summed in float64."""
    return float(np.square(total, dtype=np.float64).sum())


def _summed(pushes: list[Push]) -> tuple[Array, Array]:
    ids, place = np.unique(np.concatenate([push.ids for push in pushes]), return_inverse=True)
    total = np.zeros((len(ids), pushes[0].gradients.shape[1]), np.float32)
    _add(np.concatenate([push.gradients for push in pushes]), place, total)
    return ids, total


@njit(nogil=True, cache=True)
def _add(gradients: Array, place: Array, total: Array) -> None:
    """Sum rows that are one vertex's, in the order of ranks."""
    for i in range(len(place)):
        for k in range(total.shape[1]):
            total[place[i], k] += gradients[i, k]
