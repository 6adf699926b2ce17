"""A job made ready to run: its graph, task, model and optimiser, what executes them, and facts for run.json."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from penstock.cost.machine import processor_name
from penstock.errors import NotFinite, PenstockError
from penstock.graph.blocks import default_threads
from penstock.graph.graph import Graph
from penstock.graph.schema import edge_key
from penstock.memory import HOST_PEAK, Peak
from penstock.nn.zoo import ZOO
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder, StageTime
from penstock.progress import SILENT, Progress
from penstock.traced import is_gpu, is_traced
from penstock.train.batch_source import clock_for, layers_of
from penstock.train.callbacks.calls import Callbacks
from penstock.train.checkpoints import TrainState
from penstock.train.inputs import Inputs
from penstock.train.job import Job
from penstock.train.layerwise.host import HostPlan, Reach, followed_relations
from penstock.train.layerwise.inference import Inference
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.run_context import generators_kept, seed_generators, seeded
from penstock.train.tasks import Scores, Task
from penstock.version import __version__

# What an execution mode does for the loop: draw batches, do steps, infer, and say what a checkpoint keeps of it.

Pause = Callable[[Position], int]
"""How many steps may be done from a position on before the loop must see the weights."""


class Step(NamedTuple):
    """A step that is done."""

    position: Position
    examples: int
    loss: float
    last: bool
    """Whether its epoch ends with it."""


class Steps(Protocol):
    """Iterate to do steps: each item is the list of those done since the last one, in order.

    Between two items the weights are those of the last step.
    """

    def __iter__(self) -> Iterator[list[Step]]:
        """Do steps until the schedule ends."""

    def __enter__(self) -> Self:
        """Get ready."""

    def __exit__(self, *_: object) -> None:
        """End every thread, whatever has happened."""

    def aside(self) -> AbstractContextManager[None]:
        """Around what is no part of a step: validation, checkpoints."""

    def times(self) -> dict[str, StageTime]:
        """Busy and waiting seconds of the stages so far."""


class Execution(Protocol):
    """How one session is executed. It belongs to that session for as long as the session lives."""

    name: str
    """Of its mode in the registry."""

    def sample(self, planned: Planned) -> Batch:
        """A planned batch, drawn by the host or the device."""

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """The steps of a schedule from a position on."""

    def inference(self) -> Inference:
        """Exact outputs with the weights of this moment."""

    def is_stopped(self, own: bool) -> bool:
        """Whether this process, or another worker, wants the run to end with this epoch; all workers ask together."""

    def prepare_checkpoint(self) -> None:
        """Bring to this process what a checkpoint needs and others keep."""

    def state(self) -> Any:
        """What a checkpoint keeps of the execution, or None."""

    def restore(self, state: Any) -> None:
        """Take what a checkpoint has kept."""

    def facts(self) -> dict[str, Any]:
        """What a result says of the processor: where the graph lies, and the device's memory."""


# A job made ready to run: its graph, task, model and optimiser, and how they are executed.

_ENLARGED = 1024.0
"""By how much gradients of float16 are computed larger."""


@dataclass(eq=False)
class Session:
    """Everything a loop or an evaluation needs. `learned` holds the model and, where a task has one, its head."""

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
    """By field, what was found out about those whose finalists may be timed (`train.finalists`)."""
    placed: Any = None
    """What a GPU trains with (`train.device.placed.Placed`), where the session's graph was placed for one."""
    _execution: Execution | None = None
    peak: Peak = field(default_factory=HOST_PEAK.measure)
    """The most megabytes that the process had while the session is used."""
    device_peak: Peak | None = None
    """The most bytes that tensors took on a GPU meanwhile."""
    folder: Path | None = None
    """Where inference may keep what does not fit memory; the system's temporary folder if None."""
    progress: Progress = SILENT
    """Told how far a long step has come."""
    callbacks: Callbacks = field(default_factory=Callbacks)
    """Told what each epoch has come to."""

    @property
    def execution(self) -> Execution:
        """How the session is executed (see `train.execution`)."""
        assert self._execution is not None, "the session is not built yet"
        return self._execution

    @execution.setter
    def execution(self, execution: Execution) -> None:
        self._execution = execution

    @property
    def temporary_folder(self) -> Path:
        """Where rows that do not fit memory lie."""
        return Path(tempfile.gettempdir()) if self.folder is None else self.folder

    def drawing(self, key: np.uint64) -> AbstractContextManager[None]:
        """Around what the model computes of a batch in training: torch's generators are seeded by the batch's key.

        Draws then belong to the batch: the same whether the run was interrupted or not. A module of the user's draws
        from these generators, so no other run may meanwhile; models of the zoo do not.
        """
        seed = int(key) & (1 << 63) - 1
        if type(self.model) in ZOO:
            seed_generators(seed, self.inputs.device)
            return nullcontext()
        return seeded(seed, self.inputs.device)

    def precision(self) -> AbstractContextManager[Any]:
        """Around what is computed in the job's type."""
        if not is_gpu(self.inputs.device) or self.job.compute_type in ("float32", "tf32"):
            return nullcontext()
        # Casts are not kept: a captured step makes its own.
        dtype = torch.bfloat16 if self.job.compute_type == "bfloat16" else torch.float16
        place = "cpu" if is_traced() else self.inputs.device.type
        return torch.autocast(place, dtype, cache_enabled=False)

    def backward(self, loss: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor | None:
        """Gradients of the loss; returns `skip`, a number on the device that is 1 where a step must be left out.

        In float16 gradients are computed larger, lest the small ones vanish, and then divided; a step in which one has
        become infinite is left out.
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

    def encode(self, batch: Batch, x: dict[str, torch.Tensor]) -> Any:
        """The model's outputs for a batch's seeds."""
        return self.model(batch.blocks, next(iter(x.values())) if self.graph.is_homogeneous else x)

    @property
    def list_weight(self) -> str | None:
        """The edge field that weighs messages by the estimators of lists; a module of the user's gets it as rows."""
        return self.job.list_weight if getattr(self.model, "layerwise", False) else self.job.weight

    def inference(self) -> Inference:
        """Exact outputs with the weights of this moment."""
        return self.execution.inference()

    def whole_graph_inference(self, place: Callable[[HostPlan], LayerPlan | None] | None = None) -> Inference:
        """Exact outputs computed by this process; `place` may bring the layers to a device that has the whole graph."""
        target = getattr(self.task, "node_type", None)
        host = HostPlan(self.model, self.inputs, self.reach(), self.job.inference_mb, self.folder)
        placed = None if place is None else place(host)
        return Inference(
            self.model, self.inputs, self.graph, host if placed is None else placed, target, self.precision
        )

    def reach(self) -> Reach:
        """What exact outputs read: the relations that training follows, whole."""
        # Samplers without fan-outs are for graphs of one relation, which is always followed.
        followed = followed_relations(self.graph, self.job.fanouts, layers_of(self.job))
        clock = clock_for(self.job, self.graph)
        ages = self.job.time_width > 0
        return Reach(self.graph, followed, self.list_weight, clock, bool(self.inputs.exact_edges), ages)

    def evaluate(self, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics on some splits, by exact inference; outputs that are NaN are explained by inputs that are."""
        try:
            return self.task.evaluate(self.inference(), splits, progress)
        except NotFinite as error:
            cause = self.inputs.non_finite()
            raise NotFinite(str(error) if cause is None else f"An output is NaN because {cause}.") from error

    def follow_schedule(self) -> None:
        """Let embeddings be learned at the rate of this moment, where the job's schedule is theirs too."""
        if self.job.schedule_of == "all":
            factor = float(self.optimiser.param_groups[0]["lr"]) / self.job.lr
            self.inputs.set_rate(self.job.embedding_lr * factor)

    def label_facts(self) -> dict[str, Any]:
        """What run.json keeps of the labels: task, type, field, classes and their words."""
        return self.task.learned.facts()

    @property
    def parameters(self) -> int:
        """Learned numbers, vertex embeddings included."""
        return sum(p.numel() for p in self.learned.parameters()) + self.inputs.parameters

    def is_finite(self) -> bool:
        """Whether no weight has become infinite or NaN."""
        own = all(bool(values.isfinite().all()) for values in self.learned.state_dict().values())
        return own and self.inputs.is_finite()

    def state(self, train_state: TrainState, tables: bool = True) -> dict[str, Any]:
        """Everything that a run needs to go on from this moment, not copied; `tables`: with vertices' embeddings."""
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
        """What a model is: its weights and the vertices' embeddings."""
        return {"learned": self.learned.state_dict(), "tables": self.inputs.state()}

    def restore_weights(self, state: dict[str, Any], where: str) -> None:
        """Take weights from a checkpoint."""
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
    """What fails in it is the model: a sentence says so."""
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


# What run.json says of a run from its first moment: the graph, the task, the machine.

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
        "labels": session.label_facts(),
        "metric": {"name": task.metric.name, "better": task.metric.better},
        "parameters": session.parameters,
        "machine": {
            "cpu": processor_name(),
            "gpu": torch.cuda.get_device_name(session.inputs.device) if session.inputs.device.type == "cuda" else None,
            "cores": default_threads(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "penstock": __version__,
        },
    }


def device_facts(session: Session, train_state: TrainState) -> dict[str, Any]:
    """What a result says of the processor that trained: what lay where, how fast, its memory."""
    spent = sum(train_state.epoch_seconds) + train_state.epoch_elapsed
    return {
        "device": str(session.inputs.device),
        "batches_per_second": round(train_state.step / spent, 2) if spent else 0.0,
        **session.execution.facts(),
    }


# Steps that are only tried: afterwards a session is as it was before.


@contextmanager
def state_kept(session: Session) -> Iterator[None]:
    """Weights, running figures, the optimiser and torch's generators are afterwards as before; gradients are gone."""
    weights = {name: values.clone() for name, values in session.learned.state_dict().items()}
    optimiser = deepcopy(session.optimiser.state_dict())
    try:
        with generators_kept(session.inputs.device):
            yield
    finally:
        session.learned.load_state_dict(weights)
        session.optimiser.load_state_dict(optimiser)
        session.optimiser.zero_grad(set_to_none=True)


# What decided a field that a job leaves open: run.json and the result say it (`decided_by`).

OPERATOR_PROFILE = "operator profile"
"""Predictions from this machine's measured operators (`penstock profile --operators`)."""
RULE = "rule"
"""A rule that asks for no measurement."""
TIMED = "timed"
"""Training steps under each finalist, before the run began (`train.finalists`)."""
