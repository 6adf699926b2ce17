"""Predicts the seconds of a run before it starts: its steps, its validations, and what is done beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.cost.model import CostModel, machine_model
from penstock.cost.step_prediction import BlockSizes, StepShape, step_seconds
from penstock.errors import PenstockError
from penstock.nn.layer_table import LAYERS
from penstock.nn.order import is_sparse
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution.choice import Device
from penstock.plan.execution.first_layer import rows_gathered
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.batch_source import layers_of
from penstock.train.finalists import PredictedSteps
from penstock.train.job_batches import kind_of_batches, unknown_of, widths_of
from penstock.train.session import Session
from penstock.train.trace.fake_session import input_density
from penstock.train.whole.execution import levels_of, reach_of
from penstock.train.whole.memory import bin_sizes

APART_S = 2.0
"""Seconds of a run beside its steps and validations: start, preparation, writing."""
_FORWARD = 1 / 3
"""The part of a step that its forward pass takes: the backward pass computes two products for each of its."""


@dataclass(frozen=True)
class RunSeconds:
    """Predicted seconds of a run on a machine that does nothing else; all epochs are counted, also where a run may stop
    early.
    """

    steps: int
    step_s: float
    validations: int
    """Exact inferences: those after epochs, and the one of the test set."""
    validation_s: float
    apart_s: float = APART_S

    @property
    def total(self) -> float:
        """Seconds from the start of the run to its end."""
        return self.apart_s + self.steps * self.step_s + self.validations * self.validation_s

    def fields(self) -> dict[str, float]:
        """The parts and their sum, for JSON."""
        return {**vars(self), "total_s": self.total}


def predict_run(session: Session, device: Device) -> RunSeconds | str:
    """The seconds of a session's run on this machine, by what was measured of its operators, or else of the machine
    that comes with Penstock; or why they are not predicted. `session` has its parts on the host; nothing is computed.
    """
    job, model = session.job, machine_model()
    schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed)
    reasons = unknown_of(session, drawn=SAMPLERS[job.sampler].makes_batches)
    if device == "cuda" and not model.knows("optimiser", "cuda"):
        reasons.append("the operators of a GPU were not measured (`penstock profile --operators`)")
    if reasons:
        return ", ".join(reasons)
    try:
        step_s = (
            _drawn_s(session, model, device)
            if SAMPLERS[job.sampler].makes_batches
            else _whole_s(session, model, device)
        )
        everywhere = [BlockSizes(session.graph.num_nodes, session.graph.num_nodes, session.graph.num_edges)]
        validation_s = _FORWARD * step_seconds(model, _shape(session, everywhere * layers_of(job)), device)
    except PenstockError as error:
        if error.code != "missing-data":
            raise
        return str(error)
    every = job.evaluate_every
    # At the end the test set is judged, and what is best so far where no epoch was.
    validations = 0 if every < 0 else 1 + (-(-job.epochs // every) if every else 0)
    return RunSeconds(job.epochs * schedule.batches, step_s, validations, validation_s)


def _drawn_s(session: Session, model: CostModel, device: Device) -> float:
    """Seconds of a step on a sampled batch. Steps of a GPU are taken to be recorded, so that it does not wait for the
    host.
    """
    if device == "cpu":
        found = PredictedSteps(session, model).seconds(rows_gathered, "gather", in_run=True)
        if found is not None:
            return found
    return step_seconds(model, _shape(session, kind_of_batches(session).blocks), device)


def _whole_s(session: Session, model: CostModel, device: Device) -> float:
    """Seconds of a step on the whole graph, each layer computed at once."""
    reach, layers = reach_of(session), layers_of(session.job)
    planned = next(Schedule(session.task.items, session.task.batch_size, session.job.draw_seed).from_position())
    order, counts = levels_of(session, reach, planned)
    blocks = []
    for (size, *_), level in zip(bin_sizes(reach, layers, order, counts, 1), counts[1:], strict=True):
        blocks.append(BlockSizes(sum(size.inputs.values()), sum(level.values()), sum(size.edges.values())))
    job = session.job
    kept = LAYERS[job.model].aggregates(job) is not None and not job.input_dropout and not session.inputs.tables
    density = input_density(session) if kept else 1.0
    shape = replace(_shape(session, blocks), first_kept=kept, first_density=density if is_sparse(density) else 1.0)
    return step_seconds(model, shape, device)


def _shape(session: Session, blocks: Sequence[BlockSizes]) -> StepShape:
    return StepShape(session.job.model, blocks, widths_of(session), session.job.heads, session.job.order)
