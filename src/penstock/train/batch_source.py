"""Where a task's batches come from: the job's sampler over a graph, and the items of an epoch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS, GraphData, NodeSet
from penstock.graph.documents import StrictDocument
from penstock.graph.folder import Graph
from penstock.graph.hashing import DRAWS
from penstock.graph.integrity import require_times
from penstock.graph.schema import EdgeType, edge_key
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.sampling.block import unwrapping
from penstock.sampling.entry import ExplainedSamplingOptions, LaborOptions, SamplerSettings, check_supported
from penstock.sampling.links import EdgeBatch, Exclude
from penstock.sampling.local_source import LocalSource
from penstock.sampling.sampler_table import SAMPLERS, layer_count
from penstock.sampling.temporal import OF_NODES, checked_times, just_before
from penstock.train.dataset.labels import SplitValues
from penstock.train.job import Job
from penstock.train.job_options import SHUFFLINGS

# Tasks on edges that are sampled by time: an edge is predicted from edges before it. Edges of its own time or later are
# left out, and with them the edge itself and its reverse, so no edge has to be removed from the graph.


@dataclass(frozen=True, eq=False)
class EdgeTimes:
    """The times of the edges of the task's relation, `values` by position."""

    values: Array
    in_whole_numbers: bool
    """Whether all times that are compared are integers."""
    bound: frozenset[EdgeType]
    """Relations whose own edges have times, so that their copies of an edge to predict are left out by time."""

    def limits(self, times: Mapping[str, Array]) -> dict[str, Array]:
        """By node type, the time before which each seed may see the graph, given the times at which seeds are
        predicted.
        """
        return {name: just_before(some, self.in_whole_numbers) for name, some in times.items()}

    def exclude(self, links: EdgeBatch) -> Exclude | None:
        """The edges that a batch must not draw: its own, in relations whose edges have no times."""
        if not isinstance(links.exclude, dict):
            return None if links.edge_type in self.bound else links.exclude
        return {kind: pairs for kind, pairs in links.exclude.items() if kind not in self.bound} or None

    def splits(self, ratios: tuple[float, float, float], eligible: Array | None = None) -> dict[str, Array]:
        """Positions of train, val and test, ascending: the earliest edges are for training, the latest for the test.

        `eligible` are the positions that may be chosen (default: all). Edges whose time is NaN are in no split.
        """
        chosen = np.arange(len(self.values)) if eligible is None else eligible
        times = np.asarray(self.values[chosen])
        if times.dtype.kind == "f":
            chosen, times = chosen[~np.isnan(times)], times[~np.isnan(times)]
        order = np.argsort(times, kind="stable")
        ends = np.round(np.cumsum(ratios) * len(chosen)).astype(np.int64)
        parts = np.split(order, ends)[: len(SPLITS)]
        return {name: np.sort(chosen[some]).astype(np.int64) for name, some in zip(SPLITS, parts, strict=True)}


def seed_field(job: Job) -> str:
    """The field that holds the times of a job's seeds, vertices or edges."""
    assert job.time is not None
    return job.seed_time or job.time.removeprefix(OF_NODES)


def edge_times(job: Job, graph: Graph, kind: EdgeType) -> EdgeTimes | None:
    """The times of a relation's edges; None where the job is not sampled by time."""
    if job.time is None:
        return None
    name, field = job.time.removeprefix(OF_NODES), seed_field(job)
    of_nodes, edges = job.time.startswith(OF_NODES), graph.edges[kind]
    if field not in edges.fields:
        raise PenstockError(
            f"The edges {edge_key(kind)} have no field {field!r} that gives their times: set `seed_time` to one of"
            f" {', '.join(edges.fields) or 'their fields, of which they have none'}.",
            code="field-missing",
        )
    values = checked_times(edges.fields[field], f"Field {field!r} of {edge_key(kind)}")
    owners = graph.nodes.values() if of_nodes else graph.edges.values()
    compared = [values, *(owner.fields[name] for owner in owners if name in owner.fields)]
    bound = frozenset() if of_nodes else frozenset(kind for kind in graph.edges if name in graph.edges[kind].fields)
    return EdgeTimes(values, all(each.dtype.kind in "iu" for each in compared), bound)


OWN_OPTIONS: tuple[type[StrictDocument], ...] = (ExplainedSamplingOptions, LaborOptions)
"""Option classes that belong to one sampler each; the descriptions of their fields begin with the sampler's name."""
Sample = Callable[..., Batch]
"""`sample(seeds by node type, planned, exclude=..., times=...)`; times by node type, where the task gives them."""


@dataclass(frozen=True)
class BatchSource:
    """A sampler ready for a task: `sample` takes seeds by node type; `items` are what an epoch consists of."""

    sample: Sample
    items: Array
    batch_size: int
    messages: Graph | None = None
    """The graph whose edges carry messages in training; None where this process does not have it."""
    sampler: Any = None
    """The sampler itself, where this process has the whole graph."""


def layers_of(job: Job) -> int:
    """The number of the model's layers: the one asked for, or one for each fan-out or layer size."""
    return layer_count(job, job.layers)


def batch_size_of(job: Job, items: int) -> int:
    """Seeds in a batch, given that an epoch has so many items."""
    batches = SAMPLERS[job.sampler].batches_per_epoch
    return job.batch_size if batches is None else max(1, -(-items // batches(job)))


def settings_of(job: Job) -> SamplerSettings:
    """What the job's sampler is built with. A user's module gets edge weights as rows of edges, unapplied."""
    own = job.has_own_module
    edges = bool(job.edge_features) or (own and job.edge_weight is not None) or job.names_edges
    options = job.model_copy(update={"edge_weight": None}) if own and job.edge_weight is not None else job
    wanted = job.needs_totals, edges, job.time_width > 0, job.has_disjoint_seeds
    return SamplerSettings(options, layers_of(job), job.draw_seed, *wanted)


@dataclass(frozen=True, eq=False)
class SeedTimes:
    """The field that holds the times of seeds, and the times of vertices by type."""

    time: str
    field: str
    nodes: Mapping[str, NodeSet]

    def of(self, node_type: str) -> Any:
        """The times of all vertices of a type, as seeds; of those of the splits where a worker has no others."""
        nodes = self.nodes[node_type]
        if self.field not in nodes.fields:
            raise PenstockError(
                f"The vertices of type {node_type!r} have no field {self.field!r} that gives their times as seeds: set"
                " `seed_time`.",
                code="field-missing",
            )
        if isinstance(nodes.fields[self.field], SplitValues):
            return nodes.fields[self.field]
        require_times(nodes, "vertices", self.field)
        return np.asarray(nodes.fields[self.field])


def clock_for(job: Job, graph: Graph) -> SeedTimes | None:
    """The times of a job's seeds; None where the job is not sampled by time."""
    if job.time is None:
        return None
    return SeedTimes(job.time, seed_field(job), graph.nodes)


def make_batch_source(job: Job, graph: Graph, train: Array, excluding: bool = False) -> BatchSource:
    """The job's sampler over the `train` items. `excluding`: the task names edges that batches must leave out."""
    entry, settings = SAMPLERS[job.sampler], settings_of(job)
    check_sampler_supports(job, graph, excluding)
    sampler = entry.build(LocalSource(graph, train, job.seed, job.unchecked), settings)
    clock, leaves_out, unwrapped = clock_for(job, graph), job.excludes_examples, unwrapping(graph)

    def sample(seeds: dict[str, Array], planned: Planned, **more: Any) -> Batch:
        if not leaves_out:
            more.pop("exclude", None)
        if clock is not None and "times" not in more:
            more["times"] = {name: clock.of(name)[these] for name, these in seeds.items()}
        if "times" in more:
            more["times"] = unwrapped(more["times"])
        batch: Batch = sampler.sample(unwrapped(seeds), planned.key, **more)
        return batch

    if entry.items_per_batch is None:
        return BatchSource(sample, train, batch_size_of(job, len(train)), graph, sampler)
    return BatchSource(sample, sampler.items, entry.items_per_batch(job), graph, sampler)


def check_sampler_supports(job: Job, graph: GraphData, excluding: bool = False) -> None:
    """Refuse what the job's sampler does not support, on one machine and on clusters alike."""
    typed = not graph.is_homogeneous
    neighbour, weighs = "use sampler neighbour", settings_of(job).options.edge_weight
    wanted = {
        "types": neighbour if typed else None,
        "exclude": neighbour if excluding else None,
        "weight": f"{neighbour}, or leave out `weight` ({job.weight!r})" if job.weight is not None else None,
        "edge_weight": f"{neighbour}, or leave out `edge_weight` ({weighs!r})" if weighs is not None else None,
        "time": f"{neighbour}, or leave out `time` ({job.time!r})" if job.time is not None else None,
        "replace": f"{neighbour}, or leave out `replace`" if job.replace else None,
        "disjoint": f"{neighbour}, or leave out `disjoint`" if job.has_disjoint_seeds else None,
    }
    check_supported(
        SAMPLERS[job.sampler], {feature: remedy for feature, remedy in wanted.items() if remedy is not None}
    )
    _check_own_options(job)
    if job.draws < DRAWS and SAMPLERS[job.sampler].is_redefined(job):
        raise PenstockError(
            f"Sampler {job.sampler} as it is set draws otherwise since version {DRAWS} of draws, and the job's are of"
            f" version {job.draws}: start the run again.",
            code="unsupported-version",
        )
    if not SAMPLERS[job.sampler].shuffles and SHUFFLINGS[job.shuffle].first is None:
        raise PenstockError(
            f"Sampler {job.sampler} does not make its batches by shuffling seeds, so shuffle {job.shuffle} has no"
            " meaning for it: leave out `shuffle`.",
            code="unsupported-combination",
        )
    if job.time_width and (job.time is None or typed):
        raise PenstockError(
            "time_width encodes how old edges are, for graphs with one node type and one edge type that are sampled by"
            " `time`: leave it out, or set `time`.",
            code="unsupported-combination",
        )


def _check_own_options(job: Job) -> None:
    """Refuse fields that belong to another sampler and differ from their defaults."""
    for options in OWN_OPTIONS:
        if SAMPLERS[job.sampler].own_options is options:
            continue
        for name, field in options.model_fields.items():
            if getattr(job, name) != field.default:
                purpose = str(field.description).partition(":")[0]
                raise PenstockError(
                    f"{name} is for sampler {purpose}, and the job's sampler is {job.sampler}: leave out `{name}`, or"
                    f" use sampler {purpose}.",
                    code="conflicting-options",
                )
