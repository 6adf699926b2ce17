"""Steps one at a time, on work that others deliver: the pipeline's batches, or the planned steps on the whole graph.

A step on a batch of the pipeline is made by one process (`LearnAlone`), or as one worker's share (`LearnTogether`).
The engine's bursts do not fit here: a pipeline of threads delivers batches of any size when they are ready, and the
loop reads the weights after each step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.nn.drop import dropping
from penstock.nn.norm import has_batch_norm
from penstock.pipeline.stages import Batch, Loaded, OfBatch, StageTime, no_context
from penstock.traced import number_of
from penstock.train.dataset.inputs import Inputs
from penstock.train.session import Session, Step
from penstock.train.steps.group import WorkerGroup
from penstock.train.steps.update import make_step

T = TypeVar("T")
Coming = TypeVar("Coming", covariant=True)


class ComingWork(Protocol[Coming]):
    """An iterable of work, delivered until it is closed."""

    def __iter__(self) -> Iterator[Coming]:
        """The pieces of work in order; each is valid until the next is requested."""

    def __enter__(self) -> Self:
        """Start what delivers the work."""

    def close(self) -> None:
        """End every thread, also after an error."""

    def aside(self) -> AbstractContextManager[None]:
        """A context for what is not part of a step."""

    def times(self) -> dict[str, StageTime]:
        """Busy and waiting seconds of the stages so far."""


class OneByOne(Generic[T]):
    """Does a step for each piece of work; `ending` is called before the work is closed."""

    def __init__(
        self, work: ComingWork[T], step: Callable[[T], Step], ending: Callable[[], None] = lambda: None
    ) -> None:
        self._work, self._step, self._ending = work, step, ending

    def __iter__(self) -> Iterator[list[Step]]:
        for each in self._work:
            yield [self._step(each)]

    def __enter__(self) -> Self:
        self._work.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending()
        self._work.close()

    def aside(self) -> AbstractContextManager[None]:
        """A context for what is not part of a step."""
        return self._work.aside()

    def times(self) -> dict[str, StageTime]:
        """The seconds of the work's stages."""
        return self._work.times()


# A step on a batch that the pipeline has loaded.


class LoadedStep:
    """Does the step of a loaded batch: `learn`, in the context of `of_batch`, makes the update and returns the loss."""

    def __init__(self, learn: Callable[[Loaded], float], of_batch: OfBatch = no_context) -> None:
        self._learn, self._of_batch = learn, of_batch

    def __call__(self, loaded: Loaded) -> Step:
        """Do the step and release the batch."""
        with self._of_batch(loaded.planned):
            loss = self._learn(loaded)
        examples = loaded.examples if loaded.whole is None else loaded.whole
        step = Step(loaded.position, examples, loss, loaded.planned.last)
        # Releases its memory before a validation, and before the pipeline reads a further batch.
        del loaded.batch
        return step


class LearnAlone:
    """Computes the gradients of a batch, on older weights where the job says so, and makes the optimiser's step."""

    def __init__(self, session: Session, stale: "StaleWeights") -> None:
        self._session, self._stale = session, stale

    def __call__(self, loaded: Loaded) -> float:
        """The batch's loss; where it is not finite, no step is made."""
        session = self._session
        rows = BatchRows.of(session, loaded.batch)
        with self._stale.in_place():
            loss = loss_of(session, loaded, rows.x)
            value = number_of(loss)
            if not math.isfinite(value):
                return value
            skip = session.backward(loss)
        make_step(session, skip, rows)
        return value


class LearnTogether:
    """Computes the gradients of this worker's share of a batch; all workers make the step together."""

    def __init__(self, session: Session, group: WorkerGroup) -> None:
        self._session, self._group, self._normalises = session, group, has_batch_norm(session.learned)

    def __call__(self, loaded: Loaded) -> float:
        """The whole batch's loss. The mean over its seeds is the sum of the workers' parts."""
        session, group, batch = self._session, self._group, loaded.batch
        assert loaded.whole is not None
        rows = BatchRows.of(session, batch)
        with running_figures_kept(session):
            with group.normalising(session, batch) if self._normalises else nullcontext() as shared:
                loss = loss_of(session, loaded, rows.x)
            # Weighted losses are a sum over the seeds. A subgraph may have no training vertex at all.
            share = 1.0 if batch.seed_weights is not None else loaded.examples / max(1, loaded.whole)
            part = (loss if shared is None else shared.joined(loss)) * share
            session.backward(part)
            # Gradients of embeddings are handed in first: when the workers agree on the step, all have done so.
            rows.learn()
            return group.reduce_and_step(session, float(part.detach()))


class BatchRows(NamedTuple):
    """The input rows of a batch, some of which may be learned embeddings (`parts.LearnedRows`)."""

    inputs: Inputs
    batch: Batch
    x: dict[str, Tensor]

    @classmethod
    def of(cls, session: Session, batch: Batch) -> "BatchRows":
        """The input rows of a loaded batch; clears all gradients, as a step begins."""
        x = session.inputs.complete(batch) if session.inputs.tables else dict(batch.features)
        session.optimiser.zero_grad(set_to_none=True)
        return cls(session.inputs, batch, x)

    def learned_rows(self) -> list[Tensor]:
        return self.inputs.learned_rows(self.batch, self.x)

    def learn(self) -> None:
        if self.inputs.tables:
            self.inputs.learn(self.batch, self.x)


def loss_of(session: Session, loaded: Loaded, x: dict[str, Tensor]) -> Tensor:
    """The loss of a loaded batch, from which gradients can be computed."""
    batch, key = loaded.batch, loaded.planned.key.purpose("dropout")
    with session.drawing(key), dropping(key, batch.row_names), session.precision():
        return session.task.loss(session.encode(batch, x), batch)


@contextmanager
def running_figures_kept(session: Session) -> Iterator[None]:
    """Within it, a failing step leaves the norms' running statistics as they were, because the step is repeated."""
    before: list[tuple[Tensor, Tensor]] = [(each, each.clone()) for each in session.learned.buffers()]
    try:
        yield
    except BaseException:
        for figure, value in before:
            figure.copy_(value)
        raise


# Weights of some updates ago, on which the gradients of a batch are computed (job field `staleness`).
#
# With staleness N the update of step t uses the gradient of batch t at the weights before step t - N, or at the first
# weights where there are fewer steps. Nothing depends on timing: the same run gives the same bits, and the older
# weights are part of a checkpoint. Running statistics of norms are always the newest.


class StaleWeights:
    """The weights of a module before each of its last `updates` steps, oldest first."""

    def __init__(self, module: torch.nn.Module, updates: int) -> None:
        self._parameters = list(module.parameters())
        self._updates = updates
        self._older: deque[list[torch.Tensor]] = deque(maxlen=max(1, updates))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context for the loss of a batch and its gradients: parameters have old values within, the newest ones
        after.

        Where the block succeeds a step follows, and the newest values are stored as those before it.
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
        """The older weights for a checkpoint; None where there are none."""
        return list(self._older) if self._updates else None

    def restore(self, state: Any) -> None:
        """Load the older weights from a checkpoint."""
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
        # Through `data`: the backward pass must read the old values of the forward pass without autograd's version
        # check.
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data.copy_(value)
