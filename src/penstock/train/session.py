"""A job made ready to run: its graph, task, model and optimiser, its execution, and facts for run.json."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from penstock.cost.profile import processor_name
from penstock.errors import NotFinite, PenstockError
from penstock.graph.folder import Graph
from penstock.graph.schema import edge_key
from penstock.memory import HOST_PEAK, Peak
from penstock.nn.zoo import ZOO
from penstock.pipeline.grouped_batches import group_size
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Batch, Recorder, StageTime
from penstock.processes import default_threads
from penstock.progress import SILENT, Progress
from penstock.sampling.block import unwrapping
from penstock.traced import is_gpu, is_traced
from penstock.train.batch_source import clock_for, layers_of
from penstock.train.callbacks.calls import Callbacks
from penstock.train.dataset.inputs import Inputs
from penstock.train.job import Job
from penstock.train.layerwise.host import HostPlan, Reach, followed_relations
from penstock.train.layerwise.inference import Inference, LayerPlan
from penstock.train.run_context import generators_kept, seed_generators, seeded
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.tasks import Scores, Task
from penstock.version import __version__

# The interface of an execution mode to the loop: batches, steps, inference, and its part of a checkpoint.

Pause = Callable[[Position], int]
"""The number of steps that may be done from a position on before the loop must see the weights."""


class Step(NamedTuple):
    """A completed step, as the loop counts and records it."""

    position: Position
    examples: int
    loss: float
    last: bool
    """Whether it was the last one of its epoch."""


class Steps(Protocol):
    """An iterator that does steps: each item lists those done since the last one, in order.

    Between two items the weights are those of the last step.
    """

    def __iter__(self) -> Iterator[list[Step]]:
        """Do steps until the schedule ends."""

    def __enter__(self) -> Self:
        """Start threads and allocate what steps need."""

    def __exit__(self, *_: object) -> None:
        """End every thread, also after an error."""

    def aside(self) -> AbstractContextManager[None]:
        """A context for work that is not part of a step, such as validation and checkpoints."""

    def times(self) -> dict[str, StageTime]:
        """Busy and waiting seconds of the stages so far."""


class Execution(Protocol):
    """How one session is executed. It lives as long as its session."""

    name: str
    """The name of its mode in the registry."""

    def sample(self, planned: Planned) -> Batch:
        """A planned batch, drawn by the host or the device."""

    def prepare(self, schedule: Schedule) -> dict[str, Any]:
        """Make ready what all steps of a schedule need; returns what was decided for it by name, as a plan has it."""

    def follow(self, decided: Mapping[str, Any]) -> None:
        """Do what a plan has decided, by the names that `prepare` gives; called before it. What is not there is decided
        anew.
        """

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """The steps of a schedule from a position on."""

    def inference(self) -> Inference:
        """Exact inference with the current weights."""

    def is_stopped(self, own: bool) -> bool:
        """Whether this process (`own`) or another worker wants the run to end with this epoch; all workers call it
        together.
        """

    def prepare_checkpoint(self) -> None:
        """Collect in this process what a checkpoint needs from others."""

    def state(self) -> Any:
        """The execution's part of a checkpoint, or None."""

    def restore(self, state: Any) -> None:
        """Load the execution's part of a checkpoint."""

    def facts(self) -> dict[str, Any]:
        """What the result reports about the device: where the graph lies, and its memory."""


# A job made ready to run: its graph, task, model and optimiser, and how they are executed.

_ENLARGED = 1024.0
"""The factor by which losses in float16 are scaled."""


@dataclass(eq=False)
class Session:
    """Everything that a loop or an evaluation needs. `learned` holds the model and, where the task
    has one, its head.
    """

    job: Job
    graph: Graph
    inputs: Inputs
    task: Task
    model: torch.nn.Module
    learned: torch.nn.ModuleDict
    optimiser: torch.optim.Optimizer
    schedule: LRScheduler | None
    decided: dict[str, Any] = field(default_factory=dict)
    """Fields that the job left open, as they were decided for the graph."""
    decided_by: dict[str, str] = field(default_factory=dict)
    """What decided some of them: `OPERATOR_PROFILE`, `RULE` or `TIMED`."""
    settled: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By field, how those were decided whose finalists may be timed (`train.finalists`)."""
    placed: Any = None
    """The placement on a GPU (`train.device.placed.Placed`); None where the session's graph was not placed."""
    execution: Execution = field(init=False)
    """How the session is executed (see `train.execution`); set when the session has been built."""
    peak: Peak = field(default_factory=HOST_PEAK.measure)
    """The peak of the process's resident memory, in MB, while the session is used."""
    device_peak: Peak | None = None
    """The peak bytes of tensors on a GPU meanwhile."""
    folder: Path | None = None
    """Where inference may write rows that do not fit memory; the system's temporary folder if None."""
    progress: Progress = SILENT
    """Reports the progress of long steps."""
    callbacks: Callbacks = field(default_factory=Callbacks)
    """Called after each epoch."""

    @property
    def temporary_folder(self) -> Path:
        """The folder for rows that do not fit memory."""
        return Path(tempfile.gettempdir()) if self.folder is None else self.folder

    def executed(self) -> dict[str, Any]:
        """How batches are executed, under the names by which a plan of one machine decides it."""
        job = self.job
        found = {
            "device": self.inputs.device.type,
            "sampled_by": "cpu",
            "features": "host",
            "cache_rows": 0,
            "first_layer": job.first_layer,
            "order": job.order,
            "sample_threads": job.drawing_threads,
            "groups": 1 if job.groups == 1 else group_size(job.groups, job.threads or default_threads()),
        }
        if self.placed is None:
            return found
        residence = self.placed.decision.residence
        drawn = residence.topology != "host" and job.sample_on != "host"
        cached = self.placed.cached_rows or residence.cache_rows
        return found | {
            "sampled_by": found["device"] if drawn else "cpu",
            "features": residence.features,
            "cache_rows": cached,
        }

    def drawing(self, key: np.uint64) -> AbstractContextManager[None]:
        """A context for what the model computes on a batch in training: torch's generators are seeded by the batch's
        key.

        Random draws then depend only on the batch, so an interrupted run draws the same. A user's module draws from
        these generators, so other runs are excluded meanwhile; models of the zoo use hashes instead.
        """
        seed = int(key) & (1 << 63) - 1
        if type(self.model) in ZOO:
            seed_generators(seed, self.inputs.device)
            return nullcontext()
        return seeded(seed, self.inputs.device)

    def precision(self) -> AbstractContextManager[Any]:
        """A context in which computations use the job's number type."""
        if not is_gpu(self.inputs.device) or self.job.compute_type in ("float32", "tf32"):
            return nullcontext()
        # Casts are not cached: a captured step makes its own.
        dtype = torch.bfloat16 if self.job.compute_type == "bfloat16" else torch.float16
        place = "cpu" if is_traced() else self.inputs.device.type
        return torch.autocast(place, dtype, cache_enabled=False)

    def backward(self, loss: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute gradients of the loss; returns `skip`, a number on the device that is 1 if the step must be skipped.

        In float16 the loss is scaled up, so that small gradients do not vanish, and gradients are divided again; a step
        with an infinite gradient is skipped.
        """
        if not loss.requires_grad:
            raise PenstockError(
                "The model's outputs have no gradient, so nothing can be learned: give it parameters that require"
                " gradients, and leave out detach() and torch.no_grad() in its forward.",
                code="user-code-failed",
            )
        if self.job.compute_type != "float16" or not is_gpu(self.inputs.device):
            loss.backward()  # type: ignore[no-untyped-call]
            return skip
        (loss * _ENLARGED).backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.learned.parameters() if p.grad is not None]
        skip = torch.zeros(1, device=loss.device) if skip is None else skip.clone()
        smaller = torch.full((1,), 1 / _ENLARGED, device=loss.device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, skip, smaller)
        return skip

    @cached_property
    def of_model(self) -> Callable[[Mapping[str, Any]], Any]:
        """Gives rows by node type as the model takes them."""
        return unwrapping(self.graph)

    def encode(self, batch: Batch, x: dict[str, torch.Tensor]) -> Any:
        """The model's outputs for a batch's seeds."""
        return self.model(batch.blocks, self.of_model(x))

    @property
    def list_weight(self) -> str | None:
        """The edge field that weighs messages through the estimators of lists; None for users' modules, which get it as
        rows.
        """
        return self.job.list_weight if getattr(self.model, "layerwise", False) else self.job.weight

    def inference(self) -> Inference:
        """Exact inference with the current weights."""
        return self.execution.inference()

    def whole_graph_inference(self, place: Callable[[HostPlan], LayerPlan | None] | None = None) -> Inference:
        """Exact inference by this process; `place` may move the layers to a device that holds the whole graph."""
        target = getattr(self.task, "node_type", None)
        host = HostPlan(self.model, self.inputs, self.reach(), self.job.inference_mb, self.folder)
        placed = None if place is None else place(host)
        return Inference(
            self.model, self.inputs, self.graph, host if placed is None else placed, target, self.precision
        )

    def reach(self) -> Reach:
        """What exact inference reads: every neighbour along the relations that training follows."""
        # Samplers without fan-outs are for graphs of one relation, which is always followed.
        followed = followed_relations(self.graph, self.job.fanouts, layers_of(self.job))
        clock = clock_for(self.job, self.graph)
        ages = self.job.time_width > 0
        return Reach(self.graph, followed, self.list_weight, clock, bool(self.inputs.exact_edges), ages)

    def evaluate(self, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics on some splits, by exact inference; if outputs are NaN, the error names inputs that are."""
        try:
            return self.task.evaluate(self.inference(), splits, progress)
        except NotFinite as error:
            cause = self.inputs.non_finite()
            raise NotFinite(str(error) if cause is None else f"An output is NaN because {cause}.") from error

    def follow_schedule(self) -> None:
        """Set the current learning rate for embeddings too, if the job's schedule applies to them."""
        if self.job.schedule_of == "all":
            factor = float(self.optimiser.param_groups[0]["lr"]) / self.job.lr
            self.inputs.set_rate(self.job.embedding_lr * factor)

    @property
    def parameters(self) -> int:
        """The number of learned values, vertex embeddings included."""
        return sum(p.numel() for p in self.learned.parameters()) + self.inputs.parameters

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        own = all(bool(values.isfinite().all()) for values in self.learned.state_dict().values())
        return own and self.inputs.is_finite()

    def state(self, train_state: TrainState, tables: bool = True) -> dict[str, Any]:
        """The state from which a run can continue, not copied; `tables`: include vertex embeddings."""
        return {
            "standing": asdict(train_state),
            "draws": self.job.draws,
            "optimiser": self.optimiser.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "room": self.execution.state(),
            "learned": self.learned.state_dict(),
            "tables": self.inputs.state() if tables else {},
        }

    def weights(self) -> dict[str, Any]:
        """The model's weights and the vertex embeddings."""
        return {"learned": self.learned.state_dict(), "tables": self.inputs.state()}

    def restore_weights(self, state: dict[str, Any], where: str) -> None:
        """Load weights from a checkpoint; `where` names it in errors."""
        try:
            self.learned.load_state_dict(state["learned"])
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:
            short = " ".join(str(error).split())[:200]
            raise PenstockError(
                f"{where} holds the weights of another model ({short}): use the graph and the model that the run was"
                " trained with.",
                code="mismatched-inputs",
            ) from None
        self.inputs.restore(state["tables"])


@contextmanager
def model_at_fault() -> Iterator[None]:
    """Report errors inside the context as errors of the model."""
    try:
        yield
    except (PenstockError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        what = " ".join(str(error).split())[:300]
        raise PenstockError(
            f"The model failed on a first small batch ({type(error).__name__}: {what}): correct it; a module of your"
            " own is called as forward(x, edge_index).",
            code="user-code-failed",
        ) from error


# Facts of run.json that are known when a run starts: the graph, the task, the machine.

_MB = 1 << 20


def run_facts(session: Session) -> dict[str, Any]:
    """Everything known before the first step."""
    graph, task = session.graph, session.task
    return {
        "graph": {
            "name": graph.name,
            "nodes": {name: nodes.count for name, nodes in graph.nodes.items()},
            "edges": {edge_key(kind): edges.count for kind, edges in graph.edges.items()},
            "bytes": graph.nbytes,
            "features": session.inputs.widths,
            "learned": sorted(session.inputs.tables),
            "classes": task.out,
        },
        "decided": session.decided,
        "decided_by": session.decided_by,
        "settled": session.settled,
        "task": task.name,
        "labels": task.learned.facts(),
        "metric": {"name": task.metric.name, "better": task.metric.better},
        "parameters": session.parameters,
        "machine": {
            "cpu": processor_name(),
            "gpu": torch.cuda.get_device_name(session.inputs.device) if session.inputs.on_gpu else None,
            "cores": default_threads(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "penstock": __version__,
        },
    }


def device_facts(session: Session, train_state: TrainState) -> dict[str, Any]:
    """What the result reports about the device that trained: placement, speed, memory."""
    spent = sum(train_state.epoch_seconds) + train_state.epoch_elapsed
    return {
        "device": str(session.inputs.device),
        "batches_per_second": round(train_state.step / spent, 2) if spent else 0.0,
        **session.execution.facts(),
    }


# Trial steps, after which a session is as it was before.


@contextmanager
def state_kept(session: Session) -> Iterator[None]:
    """Restore weights, buffers, the optimiser and torch's generators afterwards; gradients are cleared."""
    weights = {name: values.clone() for name, values in session.learned.state_dict().items()}
    optimiser = deepcopy(session.optimiser.state_dict())
    try:
        with generators_kept(session.inputs.device):
            yield
    finally:
        session.learned.load_state_dict(weights)
        session.optimiser.load_state_dict(optimiser)
        session.optimiser.zero_grad(set_to_none=True)


# What decided a field that a job leaves open, as run.json and the result report it (`decided_by`).

OPERATOR_PROFILE = "operator profile"
"""Predictions from this machine's measured operators (`penstock profile --operators`)."""
RULE = "rule"
"""A fixed rule that needs no measurement."""
TIMED = "timed"
"""Timed training steps under each finalist, before the run began (`train.finalists`)."""
