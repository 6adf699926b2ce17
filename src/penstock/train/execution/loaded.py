"""Steps one at a time, on batches that the pipeline makes ready: the mode that can do everything."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.graph.blocks import default_threads
from penstock.pipeline.grouped_batches import DrawingProcessor, GroupedBatches, ReusedBatches
from penstock.pipeline.loader import AheadLoader, Batch, Loader
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.train.layerwise.inference import Inference
from penstock.train.session import Pause, Session, Steps
from penstock.train.steps.loaded import LearnAlone, LoadedStep, StaleWeights
from penstock.train.steps.one_by_one import OneByOne


class LoadedExecution:
    """The execution by one process on the host."""

    name = "loaded"

    def __init__(self, session: Session) -> None:
        self._session = session
        self.stale = StaleWeights(session.learned, session.job.staleness)
        self._grouped: GroupedBatches | None = None

    def sample(self, planned: Planned) -> Batch:
        return self._session.task.sample(planned)

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """Steps one at a time, so that the loop sees the weights after each."""
        planned = schedule.from_position(start), schedule.from_position(start)
        loader = self.loader(self.sampling(schedule, planned[0]), planned[1], recorder)
        return OneByOne(loader, LoadedStep(LearnAlone(self._session, self.stale)))

    def loader(
        self, sample: Callable[[Planned], Batch], planned: Iterable[Planned], recorder: Recorder
    ) -> Loader | AheadLoader:
        """The pipeline that makes planned batches ready."""
        session = self._session
        return Loader(planned, sample, session.inputs.carrier, session.task.label, session.job, recorder)

    def processors(self) -> list[DrawingProcessor]:
        """All that can draw batches at the same time: the threads of the host."""
        threads = self._session.job.threads or default_threads()
        return [DrawingProcessor("cpu", self.sample)] * threads

    def sampling(self, schedule: Schedule, planned: Iterator[Planned]) -> Callable[[Planned], Batch]:
        """The function that draws the planned batches of a schedule: one at a time or in groups;
        reused ones only once.
        """
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
        return self._session.whole_graph_inference()

    def is_stopped(self, own: bool) -> bool:
        return own

    def prepare_checkpoint(self) -> None:
        """Do nothing: this process has everything that a checkpoint needs."""

    def state(self) -> Any:
        """Older weights, where gradients are computed on them."""
        return self.stale.state()

    def restore(self, state: Any) -> None:
        self.stale.restore(state)

    def facts(self) -> dict[str, Any]:
        """The graph's place: the host."""
        return {
            "placement": {"topology": "host", "features": "host", "cache_rows": 0},
            "device_peak_mb": None,
            "device_predicted_mb": None,
            **self.group_facts(),
        }

    def group_facts(self) -> dict[str, Any]:
        """Figures of batches that were drawn in groups; empty where none were."""
        return {} if self._grouped is None else {"groups": self._grouped.facts()}
