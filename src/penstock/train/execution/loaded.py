"""Steps one at a time, on batches that the pipeline makes ready: the mode that can do everything."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, cast

import torch

from penstock.errors import PenstockError
from penstock.graph.blocks import default_threads
from penstock.nn.drop import dropping
from penstock.pipeline.grouped_batches import DrawingProcessor, GroupedBatches, ReusedBatches
from penstock.pipeline.loader import Batch, Loaded, Loader
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder, StageTime
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Pause, Session, Step, Steps
from penstock.wire.coflows import batch_order, within_batch

# Weights of some updates ago, on which the gradients of a batch are computed (job field `staleness`).
#
# With staleness N the update of step t uses the gradient of batch t at the weights before step t - N, or at the first
# weights where there are not as many. Nothing depends on time: the same run gives the same bits, and what is kept of
# older weights is part of a checkpoint. Running figures of normalisations are always the newest.


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


class LoadedExecution:
    """On the host, alone."""

    name = "loaded"

    def __init__(self, session: Session) -> None:
        self._session = session
        self.stale = StaleWeights(session.learned, session.job.staleness)
        self._grouped: GroupedBatches | None = None

    def sample(self, planned: Planned) -> Batch:
        """By the job's sampler."""
        return self._session.task.sample(planned)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """One at a time, so that the loop sees the weights after each."""
        planned = schedule.from_position(start), schedule.from_position(start)
        return LoadedSteps(self._session, self.sampling(schedule, planned[0]), planned[1], recorder, self.stale)

    def processors(self) -> list[DrawingProcessor]:
        """All that can draw batches at the same time: the threads of the host."""
        threads = self._session.job.threads or default_threads()
        return [DrawingProcessor("cpu", self.sample)] * threads

    def sampling(self, schedule: Schedule, planned: Iterator[Planned]) -> Callable[[Planned], Batch]:
        """What draws some planned batches of a schedule: each as it comes, or a group at a time; some only once."""
        job = self._session.job
        reused = ReusedBatches(schedule, job.reuse_mb) if job.reuse_batches else None
        if job.groups == 1:
            return self.sample if reused is None else reused.drawn_by(self.sample)
        processors = self.processors()
        if reused is not None:
            processors = [each._replace(draw=reused.drawn_by(each.draw)) for each in processors]
        self._grouped = GroupedBatches(planned, processors, job.groups)
        return self._grouped

    def inference(self) -> Inference:
        """Layer by layer over the whole graph."""
        return self._session.whole_graph_inference()

    def is_stopped(self, own: bool) -> bool:
        """As this process says."""
        return own

    def prepare_checkpoint(self) -> None:
        """Everything is here."""

    def state(self) -> Any:
        """Older weights, where gradients are computed on them."""
        return self.stale.state()

    def restore(self, state: Any) -> None:
        """The older weights of the run that was interrupted."""
        self.stale.restore(state)

    def facts(self) -> dict[str, Any]:
        """The graph lies on the host."""
        return {
            "placement": {"topology": "host", "features": "host", "cache_rows": 0},
            "device_peak_mb": None,
            "device_predicted_mb": None,
            **self.group_facts(),
        }

    def group_facts(self) -> dict[str, Any]:
        """How batches were drawn in groups, where they were."""
        return {} if self._grouped is None else {"groups": self._grouped.facts()}


class LoadedSteps:
    """Does the steps of some planned batches."""

    def __init__(
        self,
        session: Session,
        sample: Callable[[Planned], Batch],
        planned: Iterable[Planned],
        recorder: Recorder,
        stale: StaleWeights,
    ) -> None:
        self._session, self._stale = session, stale
        self._loader = Loader(planned, sample, session.inputs.carrier, session.task.label, session.job, recorder)

    def __iter__(self) -> Iterator[list[Step]]:
        for loaded in self._loader:
            with within_batch(batch_order(*loaded.position)):
                loss = self._step(loaded)
            examples = loaded.examples if loaded.whole is None else loaded.whole
            step = Step(loaded.position, examples, loss, loaded.planned.last)
            # Its memory is free before a validation, and before the pipeline reads a further batch.
            del loaded.batch
            yield [step]

    def __enter__(self) -> Self:
        self._loader.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()

    def aside(self) -> AbstractContextManager[None]:
        """Around what is no part of a step."""
        return self._loader.aside()

    def times(self) -> dict[str, StageTime]:
        """Of the five stages."""
        return self._loader.times()

    def _step(self, loaded: Loaded) -> float:
        session = self._session
        x = prepared_batch(session, loaded)
        with self._stale.in_place():
            loss = loss_of(session, loaded, x)
            value = float(loss.detach())
            skip = session.backward(loss) if math.isfinite(value) else None
        if math.isfinite(value):
            make_step(session, skip, loaded.batch, x)
        return value


def loss_of(session: Session, loaded: Loaded, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of a loaded batch, with what its gradients need."""
    batch, key = loaded.batch, loaded.planned.key.purpose("dropout")
    with session.drawing(key), dropping(key, batch.row_names), session.precision():
        return session.task.loss(session.encode(batch, x), batch)


def learn_from(session: Session, loss: torch.Tensor, batch: Batch, x: dict[str, torch.Tensor]) -> None:
    """The gradients of a batch's loss, and the optimiser's step with them."""
    make_step(session, session.backward(loss), batch, x)


def make_step(session: Session, skip: torch.Tensor | None, batch: Batch, x: dict[str, torch.Tensor]) -> None:
    """The optimiser's step with the gradients that the parameters have; `skip` is as `Session.backward` returns it."""
    if session.job.clip:
        rows = session.inputs.learned_rows(batch, x)
        torch.nn.utils.clip_grad_norm_([*session.learned.parameters(), *rows], session.job.clip)
    cast(Any, session.optimiser).found_inf = None if skip is None else skip[0]
    session.optimiser.step()
    session.inputs.learn(batch, x)


def prepared_batch(session: Session, loaded: Loaded) -> dict[str, torch.Tensor]:
    """A loaded batch's inputs, with gradients as at the start of its step."""
    x = session.inputs.complete(loaded.batch)
    session.optimiser.zero_grad(set_to_none=True)
    return x
