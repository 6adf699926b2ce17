"""A job made ready to run: graph opened, task, model and optimiser built and tried on a few seeds. Nothing written."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from penstock.errors import NotFinite, PenstockError
from penstock.graph.graph import Graph
from penstock.nn import ModelOptions, adapt, build_model
from penstock.nn.own import build_own
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Schedule
from penstock.progress import SILENT, Progress
from penstock.train.batch_source import clock_for, layers_of
from penstock.train.data import choose_task, open_data, prepared, with_empty_relations
from penstock.train.device_full import STEPS, device_memory
from penstock.train.inputs import Inputs
from penstock.train.job import Job
from penstock.train.layerwise.engine import evaluating
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.inference import Inference
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.layerwise.reach import Reach, followed_relations
from penstock.train.learned_labels import LearnedLabels
from penstock.train.optimisers import make_optimiser, make_schedule
from penstock.train.processor import chosen_device
from penstock.train.run_length import with_epochs
from penstock.train.tasks import Scores, Task, make_task
from penstock.train.train_state import TrainState

if TYPE_CHECKING:
    from penstock.train.device.placed import Placed
    from penstock.train.worker_group import WorkerGroup

_ENLARGED = 1024.0
_TRIED = 4
"""Seeds of the batch a model is tried on."""


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
    device: "Placed | None" = None
    """What lies where, if a GPU trains."""
    worker_group: "WorkerGroup | None" = None
    """The workers that share the run, if there are several."""
    folder: Path | None = None
    """Where inference may keep what does not fit memory; the system's temporary folder if None."""

    def sample(self, planned: Planned) -> Batch:
        """A planned batch, drawn by whatever draws best."""
        draw = self.task.sample if self.device is None or self.device.sample is None else self.device.sample
        return draw(planned)

    def precision(self) -> AbstractContextManager[Any]:
        """Around what is computed in the job's type."""
        if self.inputs.device.type == "cpu" or self.job.compute_type in ("float32", "tf32"):
            return nullcontext()
        # Casts are not kept: a captured step makes its own.
        dtype = torch.bfloat16 if self.job.compute_type == "bfloat16" else torch.float16
        return torch.autocast(self.inputs.device.type, dtype, cache_enabled=False)

    def backward(self, loss: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor | None:
        """Gradients of the loss; returns `skip`, a number on the device that is 1 where a step must be left out.

        In float16 gradients are computed larger, lest the small ones vanish, and then divided; a step in which one has
        become infinite is left out.
        """
        if self.job.compute_type != "float16" or self.inputs.device.type == "cpu":
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

    def inference(self) -> Inference:
        """Exact outputs with the weights of this moment."""
        if self.worker_group is not None:
            found: Inference = self.worker_group.inference(self)
            return found
        job, hops = self.job, layers_of(self.job)
        # Samplers without fan-outs are for graphs of one relation, which is always followed.
        followed = followed_relations(self.graph, job.fanouts, hops)
        reach = Reach(self.graph, followed, job.weight, clock_for(job, self.graph))
        target = getattr(self.task, "node_type", None)
        host = HostPlan(self.model, self.inputs, reach, job.inference_mb, self.folder)
        whole = None if self.device is None else self.device.whole_graph(host, self.graph, job, self.inputs.scale)
        plan: LayerPlan = host if whole is None else whole
        return Inference(self.model, self.inputs, self.graph, plan, target, self.precision)

    def evaluate(self, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics on some splits, by exact inference; outputs that are NaN are explained by inputs that are."""
        try:
            return self.task.evaluate(self.inference(), splits, progress)
        except NotFinite as error:
            cause = self.inputs.non_finite()
            raise NotFinite(str(error) if cause is None else f"An output is NaN because {cause}.") from error

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
            "optimiser": self.optimiser.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "room": self.room(),
            "learned": self.learned.state_dict(),
            "tables": self.inputs.state() if tables else {},
        }

    def weights(self) -> dict[str, Any]:
        """What a model is: its weights and the vertices' embeddings."""
        return {"learned": self.learned.state_dict(), "tables": self.inputs.state()}

    def room(self) -> list[list[int]] | None:
        """The room of captured steps, which sums round by: a run keeps it when it goes on."""
        room = self.device.room if self.device is not None and self.device.is_captured else None
        return None if room is None else [list(room.rows), list(room.edges)]

    def restore_room(self, room: Any) -> None:
        """The room from a checkpoint."""
        if self.device is not None and self.device.is_captured and room is not None:
            self.device.take_room(room)

    def restore_weights(self, state: dict[str, Any], where: str) -> None:
        """Take weights from a checkpoint."""
        try:
            self.learned.load_state_dict(state["learned"])
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:
            short = " ".join(str(error).split())[:200]
            raise PenstockError(
                f"{where} holds another model's weights ({short}): give the model it was trained with.",
                code="mismatched-inputs",
            ) from None
        self.inputs.restore(state["tables"])


def make_session(
    job: Job,
    graph: Graph | None = None,
    module: torch.nn.Module | None = None,
    taught: LearnedLabels | None = None,
    progress: Progress = SILENT,
) -> Session:
    """Build everything a job names. `graph` and `module` stand for the job's own where given.

    `taught` is what a run has learned from: the session is then for using its model, and the graph may lack labels.
    """
    graph = open_data(job) if graph is None else prepared(graph, job)
    # Who only uses a model may do so on any machine.
    device = chosen_device(job.device if taught is None or job.device == "cpu" else "auto")
    if not graph.edges:
        if job.model != "mlp" or module is not None or job.module is not None:
            raise PenstockError(
                "The graph has no edges, so there are no neighbours to learn from: use model mlp.", code="missing-data"
            )
        graph = with_empty_relations(graph)
    torch.manual_seed(job.seed)
    inputs = Inputs(graph, job, device)
    task, graph = make_task(taught.task if taught else choose_task(graph, job), graph, job, taught)
    session = assembled(job, graph, inputs, task, module)
    if device.type == "cuda":
        from penstock.train.device.placement import place

        session.device = place(session, taught is None, progress)
    try_out(session, with_loss=taught is None)
    return session


def assembled(job: Job, graph: Graph, inputs: Inputs, task: Task, module: torch.nn.Module | None = None) -> Session:
    """A session of its parts: the model is built or adapted, with its optimiser and schedule.

    What the job leaves open (`epochs: auto`) is decided: `session.job` says how.
    """
    given, job = job, with_epochs(job, graph, task)
    decided = {} if job is given else {"epochs": job.epochs}
    model = _make_model(job, graph, inputs, task, module)
    parts = {"model": model} if task.head is None else {"model": model, "head": task.head}
    learned = torch.nn.ModuleDict(parts).to(inputs.device)
    optimiser = make_optimiser(learned.parameters(), job, inputs.device)
    return Session(job, graph, inputs, task, model, learned, optimiser, make_schedule(optimiser, job), decided)


def _make_model(job: Job, graph: Graph, inputs: Inputs, task: Task, module: torch.nn.Module | None) -> torch.nn.Module:
    if module is None and job.module is not None:
        widths = next(iter(inputs.widths.values())) if graph.is_homogeneous else dict(inputs.widths)
        module = build_own(job.module, widths, task.out)
    if module is not None:
        if not module.training:
            # Left so by an evaluation. A module in training whose parts are not has them frozen, and they stay so.
            module.train()
        if getattr(module, "layerwise", False):
            return module
        if job.weight is not None:
            raise PenstockError(
                "A module of your own takes no edge weights: leave out `weight`, or use a zoo model.",
                code="unsupported-combination",
            )
        return adapt(module, not graph.is_homogeneous, layers_of(job), list(graph.edges))
    chosen = {name: getattr(job, name) for name in ModelOptions.model_fields}
    options = ModelOptions(**{**chosen, "layers": layers_of(job)})
    if graph.is_homogeneous:
        return build_model(options, next(iter(inputs.widths.values())), task.out)
    return build_model(options, inputs.widths, task.out, list(graph.edges), getattr(task, "node_type", None))


def try_out(session: Session, with_loss: bool) -> None:
    """One small batch through the model and the loss: what does not fit shows before anything is written."""
    if not with_loss and len(session.task.items) == 0:
        return
    schedule = Schedule(session.task.items, min(_TRIED, session.task.batch_size), session.job.seed)
    planned = next(schedule.from_position())
    batch, carrier = session.task.sample(planned), session.inputs.carrier
    carrier.gather(batch)
    if with_loss:
        session.task.label(batch)
    with device_memory(lambda: "on a first small batch", STEPS):
        carrier.transfer(batch)
        carrier.arrive(batch)
        x = session.inputs.complete(batch)
        with model_at_fault(), torch.no_grad(), evaluating(session.model), session.precision():
            out = session.encode(batch, x)
            if with_loss:
                session.task.loss(out, batch)


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
            f"The model failed on a first small batch ({type(error).__name__}: {what}): mend it.",
            code="user-code-failed",
        ) from error
