"""Declares what an execution mode can do, and derives the reasons against using it for a session."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from penstock.graph.folder import Graph
from penstock.nn.layer_table import LAYERS
from penstock.sampling.device.typed import relation_draws
from penstock.sampling.draws import SCANNED
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.dataset.inputs import Inputs
from penstock.train.job import Job
from penstock.train.optimisers import reasons_against_capture

SEVERAL_TYPES = "the graph has several types"


_MOST_BY_WEIGHT = 1024
"""The largest fan-out by weight without replacement for which a device has registers."""


class Demands(NamedTuple):
    """The properties of a session that an execution mode must support."""

    job: Job
    graph: Graph
    task: Any
    library_model: bool = True
    """Whether the model is one of `penstock.nn`, and not a module of the user's."""
    learned_rows: bool = False
    """Whether vertices have embeddings that are learned."""
    user_loss: bool = False
    """Whether the loss is a function of the user's."""
    rows_on_host: bool = False
    """Whether those embeddings are in the host's memory."""


@dataclass(frozen=True)
class Support:
    """What an execution mode can do. The defaults are everything."""

    several_types: bool = True
    times: bool = True
    edge_rows: bool = True
    """Whether batches may read rows of edges."""
    layers_on_edges: bool = True
    """Whether layers may make a row for each edge, for which the host must know how many edges a batch has."""
    device_samplers_only: bool = False
    tasks: str | None = None
    """What of `TaskFacts` a task must declare, such as `drawn_by_devices`; None: any task will do."""
    joint_samplers: bool = True
    """Whether the sampler may draw a batch as a whole for all workers."""
    most_vertices: int | None = None
    user_modules: bool = True
    modules_on_edges: bool = True
    """Whether a user's module may be for tasks on edges or several types, whose edges have no lists of fixed length."""
    user_losses: bool = True
    """Whether the loss may be a function of the user's."""
    learned_rows: bool = True
    rows_on_host: bool = True
    """Whether learned embeddings may be in the host's memory, with any optimiser."""
    norms: frozenset[str] | None = None
    typed_batch_norm: bool = True
    """Whether batches of several types may be normalised, for which the number of each type's rows must be known."""
    any_optimiser: bool = True
    """Whether the optimiser may do something on the host, or in its first step alone."""
    compute_types: frozenset[str] | None = None
    reused_batches: bool = True
    grouped_batches: bool = True
    stale_gradients: bool = True


EVERYTHING = Support()
SHARED = Support(stale_gradients=False)
"""The support of steps that workers share: stale gradients are not summed."""
EXPLAINED = replace(
    SHARED,
    tasks="explainable",
    user_modules=False,
    learned_rows=False,
    reused_batches=False,
    grouped_batches=False,
)
"""The support of explanations, which rebuild the model in another process, read stored rows, and
change later batches.
"""
DEVICE_SAMPLING = Support(
    times=False,
    device_samplers_only=True,
    tasks="drawn_by_devices",
    most_vertices=(1 << 31) - 1,
    reused_batches=False,
)
"""The support of batches that a device draws by itself."""
SHARED_DEVICE_SAMPLING = replace(
    DEVICE_SAMPLING,
    joint_samplers=False,
    edge_rows=False,
    layers_on_edges=False,
    norms=frozenset({"none", "layer"}),
)
"""The support of shares of batches that a worker's device draws; batch norms among workers match rows on the host."""
CAPTURED = replace(
    DEVICE_SAMPLING,
    tasks="drawn_in_captured_steps",
    edge_rows=False,
    layers_on_edges=False,
    modules_on_edges=False,
    rows_on_host=False,
    typed_batch_norm=False,
    any_optimiser=False,
    grouped_batches=False,
    stale_gradients=False,
)
"""The support of steps that are captured once and replayed."""
CAPTURED_SHARED = replace(
    CAPTURED,
    tasks=SHARED_DEVICE_SAMPLING.tasks,
    norms=SHARED_DEVICE_SAMPLING.norms,
    user_modules=False,
    user_losses=False,
)
"""The same among workers."""


class Placeable(Protocol):
    """The part of a session that decides how it is executed and where its graph may be placed; a
    loader has no model.
    """

    @property
    def job(self) -> Job:
        """The job's fields, and what was decided for it."""

    @property
    def graph(self) -> Graph:
        """The graph whose edges carry messages."""

    @property
    def inputs(self) -> Inputs:
        """The rows that batches read."""

    @property
    def task(self) -> Any:
        """The task that defines the batches, or vertices that a loader was given; both have a `name` and `facts`."""

    @property
    def model(self) -> Any:
        """The model; None where the caller has its own."""


def demands_of(session: Placeable) -> Demands:
    """The properties of a session that its execution mode must support."""
    library = bool(getattr(session.model, "layerwise", False))
    own_loss = bool(getattr(session.task, "has_own_loss", False))
    learned, on_host = bool(session.inputs.tables), not session.inputs.has_tables_on_device
    return Demands(session.job, session.graph, session.task, library, learned, own_loss, learned and on_host)


def reasons_against(support: Support, demands: Demands) -> list[str]:
    """Why `support` does not cover a session's demands; empty where it does."""
    return [*_against_batches(support, demands), *_against_model(support, demands)]


def _against_batches(support: Support, demands: Demands) -> list[str]:
    job, graph, task = demands.job, demands.graph, demands.task
    reasons = []
    if not graph.is_homogeneous:
        reasons += _against_types(support, demands)
    if support.device_samplers_only and SAMPLERS[job.sampler].device is None:
        reasons.append(f"sampler {job.sampler} draws on the host only")
    elif (
        support.device_samplers_only
        and job.sample_on == "auto"
        and graph.num_edges > SAMPLERS[job.sampler].device_edges
    ):
        reasons.append("a device draws such batches of a graph of this size only if it is asked to (sample_on: device)")
    if not support.times and job.time is not None:
        reasons.append("the host alone draws by time")
    most = SCANNED if job.replace else _MOST_BY_WEIGHT
    if support.device_samplers_only and job.weight is not None and job.largest_fanout > most:
        reasons.append(f"fan-outs beyond {most:,} by weight are drawn by the host")
    if support.device_samplers_only and job.has_disjoint_seeds:
        reasons.append("neighbourhoods that seeds do not share are drawn by the host")
    if not support.edge_rows and (job.edge_features or (job.edge_weight is not None and not demands.library_model)):
        reasons.append("rows of edges (edge_features, edge_weight) differ in number from batch to batch")
    layer = LAYERS[job.model]
    on_edges = demands.library_model and layer.makes_edge_rows and layer.edge_rows_on_device
    if not support.layers_on_edges and on_edges:
        reasons.append(f"model {job.model} makes a row for each edge, whose number the host must know")
    if support.tasks is not None and not getattr(task.facts, support.tasks):
        only = support.tasks == "drawn_by_devices" and task.facts.drawn_in_captured_steps
        drawn = f"a device draws batches of {task.facts.about} for captured steps only"
        reasons.append(drawn if only else f"task {task.name} is not supported there")
    if not support.joint_samplers and SAMPLERS[job.sampler].joint:
        reasons.append(f"sampler {job.sampler} draws a batch as a whole, of which each worker keeps its share")
    if support.most_vertices is not None and graph.num_nodes > support.most_vertices:
        reasons.append("the graph has 2^31 vertices or more")
    if support.most_vertices is not None and len(getattr(task, "items", ())) > support.most_vertices:
        reasons.append("an epoch has 2^31 examples or more")
    if not support.reused_batches and job.reuse_batches:
        reasons.append("batches that are used again are drawn by the host")
    if not support.grouped_batches and job.groups != 1:
        reasons.append("batches are not drawn in groups there")
    return reasons


def _against_types(support: Support, demands: Demands) -> list[str]:
    """The reasons against a graph of several types."""
    job, graph, task = demands.job, demands.graph, demands.task
    if not support.several_types:
        return [SEVERAL_TYPES]
    if not support.device_samplers_only or SAMPLERS[job.sampler].device is None:
        return []
    seeds = seed_types(task)
    if not seeds or not SAMPLERS[job.sampler].device_types:
        return [SEVERAL_TYPES]
    reasons = []
    draws = relation_draws(list(graph.edges), job.fanouts, seeds)
    if {draw.hop for draw in draws} != set(range(len(job.fanouts))):
        reasons.append(f"a hop has no relation that leads to vertices which {' and '.join(seeds)} have reached")
    if not support.typed_batch_norm and job.norm == "batch":
        reasons.append("batch normalisation of several types needs their numbers of rows on the host")
    return reasons


def seed_types(task: Any) -> list[str]:
    """The node types of the vertices that a task's batches begin with."""
    if task.facts.about == "edges":
        source, _, destination = task.edge_type
        return list(dict.fromkeys((source, destination)))
    return [task.node_type] if hasattr(task, "node_type") else []


def _against_model(support: Support, demands: Demands) -> list[str]:
    job = demands.job
    reasons = []
    if not support.user_modules and not demands.library_model:
        reasons.append("the model is a module of the user's own")
    one_list = demands.graph.is_homogeneous and demands.task.facts.about == "vertices"
    if not support.modules_on_edges and not demands.library_model and not one_list:
        reasons.append("a module of the user's own is captured for one type and tasks on vertices only")
    if not support.user_losses and demands.user_loss:
        reasons.append("the loss is a function of the user's own")
    if (not support.learned_rows and demands.learned_rows) or (not support.rows_on_host and demands.rows_on_host):
        reasons.append("vertex embeddings are learned on the host")
    if not support.rows_on_host and demands.learned_rows and job.compute_type == "float16":
        reasons.append("the gradients of vertex embeddings are not scaled for float16")
    if support.norms is not None and job.norm not in support.norms:
        reasons.append(f"{job.norm} normalisation is not supported there")
    if not support.any_optimiser:
        reasons += reasons_against_capture(job)
    if support.compute_types is not None and job.compute_type not in support.compute_types:
        reasons.append(f"compute_type {job.compute_type} is not supported there")
    if job.staleness and not support.stale_gradients:
        reasons.append(f"gradients are not computed on older weights there (staleness {job.staleness})")
    if job.staleness and demands.learned_rows:
        reasons.append(f"vertex embeddings have no older values (staleness {job.staleness})")
    return reasons
