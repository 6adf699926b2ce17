"""Batches of a partitioned graph: drawn by this process or by sampler tasks, for seeds by their original numbers."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from penstock.cluster.layout import Setup
from penstock.cluster.member import Member
from penstock.cluster.worker.cut_graph import CutGraph, Parts, open_cut_graph
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, open_array
from penstock.graph.data import NodeSet
from penstock.graph.files import replace_whole
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType
from penstock.partition import open_partition
from penstock.pipeline.schedule import Planned, Schedule
from penstock.pipeline.stages import Batch
from penstock.sampling.block import BatchKey, unwrapping
from penstock.sampling.cluster import clusters_from, clusters_of
from penstock.sampling.entry import DrawOptions, ReadableLists
from penstock.sampling.explained import ExplainedLists, ReachedParts
from penstock.sampling.explanation import SamplingExplanation
from penstock.sampling.links import EdgeBatch, Exclude
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import ListSource
from penstock.sampling.parts import (
    HoldoutSampler,
    PartedGraph,
    RemoteSampler,
    SharedSampler,
    parted_graph,
    parted_lists,
    serve_batches,
)
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.triples import TripleBatch
from penstock.train.batch_source import BatchSource, batch_size_of, settings_of
from penstock.train.dataset.inputs import with_edge_fields
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.dataset.prepared_graph import choose_task
from penstock.train.job import Job, stored_job
from penstock.train.session import Session
from penstock.wire.coflows import PREPARATION, Coflow, within_coflow
from penstock.wire.message import Message

# Cluster-GCN's clusters on several machines: the first worker computes them and sends them to the others. METIS needs
# the graph in one place: meanwhile the first worker has all lists in the original numbers (4 bytes per edge, 8 per
# vertex) and METIS's own memory, as a single machine has. It keeps the result in the run's folder, so that a restarted
# worker need not compute it again, and all tasks have the same clusters whatever library each has.

_FILE = "clusters.npy"
_PIECE = 1 << 20
"""Vertices whose clusters are sent at a time: 8 MiB."""
_AGAIN = 0.1
"""Seconds before the first worker is asked again."""


def clusters_for(parts: Parts, job: Job) -> Array:
    """The cluster (int64) of every vertex, by its original number."""
    return offer_clusters(parts, job) if is_first_worker(parts) else _ask(parts)


def is_first_worker(parts: Parts) -> bool:
    """Whether this task computes the clusters for all."""
    task = parts.member.setup.task
    return task.kind == "worker" and task.rank == 0


def offer_clusters(parts: Parts, job: Job) -> Array:
    """Compute the clusters, and serve them to other workers from then on."""
    found: list[Array] = []

    def give(message: Message, sender: str) -> Message:
        first = message.body.get("first")
        if not isinstance(first, int) or first < 0:
            raise PenstockError(
                f"Clusters were asked for from vertex {first!r} on: ask from 0 or more.", code="value-out-of-range"
            )
        # An answer without an array means: not yet.
        return Message("clusters", {}, tuple(clusters[first : first + _PIECE] for clusters in found))

    parts.member.endpoint.serve("clusters", give)
    found.append(_kept(parts, job))
    return found[0]


def _kept(parts: Parts, job: Job) -> Array:
    """The clusters from the run's folder, or computed and written there."""
    path, count = Path(parts.member.setup.run) / _FILE, parts.partition.book.count()
    if path.exists():
        try:
            return np.array(open_array(path, "int64", (count,)))
        except PenstockError:
            raise PenstockError(
                f"{path} does not hold the clusters of {count:,} vertices: delete it, and they are computed again.",
                code="damaged-file",
            ) from None
    clusters = _found(parts, job)
    replace_whole(path, lambda file: np.save(file, clusters, allow_pickle=False))
    return clusters


def _found(parts: Parts, job: Job) -> Array:
    """Compute the clusters as a run on one machine does."""
    if isinstance(job.clusters, str):
        clusters = clusters_from(open_partition(Path(job.clusters), job.unchecked))
        count = parts.partition.book.count()
        if len(clusters) != count:
            raise PenstockError(
                f"There are {len(clusters):,} cluster numbers ({clusters.dtype}) for {count:,} vertices: give one"
                " integer for each vertex.",
                code="shape-mismatch",
            )
    else:
        (kind,) = parts.edge_types
        nodes = {kind[2]: NodeSet(parts.partition.book.count())}
        graph = Graph(nodes, {kind: parts.reader.lists(kind)}, str(parts.partition.document.graph))
        clusters = clusters_of(graph, job.clusters, job.seed)
    return np.ascontiguousarray(clusters, np.int64)


def _ask(parts: Parts) -> Array:
    """Request the clusters from the first worker for as long as the run lasts: the controller restarts it, or ends the
    run.
    """
    channel = parts.member.endpoint.channel("worker-0", "state")
    clusters, known = np.empty(parts.partition.book.count(), np.int64), 0
    while known < len(clusters):
        try:
            arrays = channel.call(Message("clusters", {"first": known})).arrays
        except PenstockError:
            # It does not run, or does not serve requests yet.
            arrays = ()
        if arrays:
            (piece,) = arrays
            if piece.ndim != 1 or piece.dtype != np.int64 or not 0 < len(piece) <= len(clusters) - known:
                raise PenstockError(
                    "The first worker sent an answer without valid clusters: run the same release on all machines.",
                    code="malformed-message",
                )
            clusters[known : known + len(piece)] = piece
            known += len(piece)
        elif parts.member.stopped.wait(_AGAIN):
            raise PenstockError("The controller ended the run.", code="closed")
    return clusters


# A partitioned graph as the source of samplers (see `sampling.entry.GraphSource`): lists are requested from the
# parts' owners. Samplers that read whole lists (`whole_lists`) keep, in every process that draws, the offsets of all
# lists (8 bytes for each vertex), and what they compute beforehand:
#
# - fastgcn, saint-vertex, saint-edge, saint-walk of one step: probabilities of all vertices (16 to 32 bytes each), for
# which all lists are read once, 16 MiB at a time. They are summed in the order in which one machine sums, because sums
# at the owners would round differently; a draw is a search in them.
#
# - saint-walk of more steps: all lists and a count of walks for each edge, 8 bytes each. Counting walk by walk over the
# wire would move more than the lists.
#
# - cluster: the vertices cluster by cluster (5 bytes each); the first worker computes the clusters.


class PartedSource:
    """The parts of a run's graph. `train` are the training vertices in the partitioned graph's numbers.

    A sampler task, which does not know them, leaves them out: they are then read from the graph when needed.
    """

    def __init__(self, parts: Parts, job: Job, train: Array | None = None) -> None:
        self._parts, self._job, self._train = parts, job, train
        self._absent: Mapping[EdgeType, HeldOutRule] = {}
        self._graph: PartedGraph | None = None

    def lists(self, options: DrawOptions, *, shared: bool = False) -> ReadableLists:
        """Lists drawn by their owners; those of local parts are read directly."""
        parts = self._parts
        return parted_lists(
            parts.partition,
            options.replace,
            options.list_weight,
            options.time,
            shared,
            local=parts.owned,
            channels=parts.lists,
            absent=self._absent,
            vertex_times=parts.vertex_times(options.time),
            edge_times=parts.edge_times(options.time),
            uniform=options.weight is None,
        )

    def whole_lists(self, sampler: str) -> PartedGraph:
        if self._graph is None:
            parts = self._parts
            self._graph = parted_graph(parts.partition, sampler, parts.owned, parts.lists)
        return self._graph

    def training_vertices(self) -> Array:
        """The training vertices in the partitioned graph's numbers."""
        if self._train is None:
            graph = open_cut_graph(self._parts, self._job)
            data = labelled_vertices(graph, self._job, choose_task(graph, self._job))
            self._train = self._parts.partition.new_ids(data.splits["train"], data.node_type)
        return self._train

    def clusters(self, options: DrawOptions) -> Array:
        """The clusters that the first worker computed, in the cut graph's numbering."""
        clusters: Array = clusters_for(self._parts, self._job)[self.whole_lists(options.sampler).names]
        return clusters

    def locality(self, options: DrawOptions) -> "PartedLocality":
        """The vertices of this machine's parts are local."""
        return PartedLocality(self._parts, self._job, self.lists(options))

    def without(self, absent: Mapping[EdgeType, HeldOutRule]) -> Self:
        """The owners leave out the edges that are held out."""
        other = copy.copy(self)
        other._absent = absent
        return other


class PartedLocality:
    """A worker's machine among the parts (see `sampling.entry.Locality`)."""

    def __init__(self, parts: Parts, job: Job, plain: ReadableLists) -> None:
        self._parts, self._job, self._plain = parts, job, plain

    def explanation(self, key: BatchKey) -> SamplingExplanation | None:
        return self._parts.explanation_at(key)

    def lists(self, explanation: SamplingExplanation) -> dict[EdgeType, ListSource]:
        parts, bias = self._parts, self._job.remote_bias
        reached = ReachedParts(parts.partition.book, parts.owned, parts.lists, self._count)
        plain = self._plain.readable.relations
        return {kind: ExplainedLists(kind, reached, plain[kind], explanation, bias) for kind in plain}

    def _count(self, sent: int) -> None:
        self._parts.score_bytes += sent


# How the seeds of a batch are split among workers: equal shares, each as close to the worker's parts as possible.


class SeedSplit:
    """Splits batches of `items` (ascending). `new` are their numbers in the partitioned graph, where parts are ranges.

    The seeds of a batch, ordered by these, are cut into ranges of the workers' shares, in the order of ranks, which is
    that of their machines' parts. Every worker computes its share without communication.
    """

    def __init__(self, items: Array, new: Array, shares: Sequence[float], rank: int) -> None:
        self._items, self._new, self._alone = items, new, len(shares) == 1
        self._range = _range_of(shares, rank)

    @property
    def part(self) -> float:
        """The part of a batch that `share` returns."""
        return 1.0 if self._alone else self._range[1] - self._range[0]

    def share(self, planned: Planned) -> Planned:
        """One worker's part of a batch."""
        count = len(planned.seeds)
        if self._alone:
            return planned._replace(whole=count)
        return planned._replace(seeds=planned.seeds[self.places(planned)], whole=count)

    def places(self, planned: Planned) -> Array:
        """The positions of one worker's seeds in a batch, in the order of its share."""
        if self._alone:
            return np.arange(len(planned.seeds))
        return _within(self._new[np.searchsorted(self._items, planned.seeds)], self._range)


def whole_batches(items: Array) -> SeedSplit:
    """Leaves batches whole, for sources that take their share when they draw: on edges, with the negatives; by time,
    where draws depend on the seeds' positions; and those that draw a batch as a whole.
    """
    return SeedSplit(items, items, [1.0], 0)


def vertex_share(shares: Sequence[float], rank: int) -> Callable[[Array], Array] | None:
    """A function from vertices, by number in the partitioned graph, to the positions of one worker's, as in
    `SeedSplit`; None: all are.

    It is for batches that are drawn as a whole, whose vertices are known only then.
    """
    return None if len(shares) == 1 else partial(_within, share=_range_of(shares, rank))


class EdgeSplit:
    """Splits batches of edges by their destinations, whose numbers in the partitioned graph `new` returns, as
    `SeedSplit` does.
    """

    def __init__(self, new: Callable[[Array], Array], shares: Sequence[float], rank: int) -> None:
        self._new, self._range = new, _range_of(shares, rank)

    def __call__(self, links: EdgeBatch | TripleBatch) -> Array:
        """The positions of one worker's positives, ascending."""
        return np.sort(_within(self._new(links.destination), self._range))


def _range_of(shares: Sequence[float], rank: int) -> tuple[float, float]:
    """The range of a worker's share, where all shares together are 1."""
    ends = np.cumsum([0.0, *shares])
    return float(ends[rank]), 1.0 if rank == len(shares) - 1 else float(ends[rank + 1])


def _within(new: Array, share: tuple[float, float]) -> Array:
    """The positions of what lies within a share, in ascending order of the numbers."""
    order = np.argsort(new, kind="stable")
    return order[round(share[0] * len(new)) : round(share[1] * len(new))]


SAMPLER = "train"
"""The name under which sampler tasks serve the job's sampler."""


def job_sampler(parts: Parts, job: Job, train: Array | None = None) -> Any:
    """The job's sampler over all parts; `train` are the training vertices in the cut graph's numbers, if known."""
    with within_coflow(Coflow(PREPARATION, "", 1)):
        return _job_sampler(parts, job, train)


def _job_sampler(parts: Parts, job: Job, train: Array | None) -> Any:
    entry, source, settings = SAMPLERS[job.sampler], PartedSource(parts, job, train), settings_of(job)
    if entry.joint:
        return _shared(parts, job, source, entry.build(source, settings), settings.edges)
    if "exclude" not in entry.supports:
        return entry.build(source, settings)
    return HoldoutSampler(lambda absent: entry.build(source.without(absent), settings), parts.edge_types)


def make_parted_batches(
    parts: Parts, job: Job, node_type: str, graph: CutGraph, train: Array, new: Array
) -> BatchSource:
    """`train` are the training vertices, ascending, and `new` their numbers in the partitioned graph."""
    sampler, of_sampler = _sampler_for(parts, job), unwrapping(graph)

    def sample(seeds: Mapping[str, Array], planned: Planned, **more: Any) -> Batch:
        (given,) = seeds.values()
        numbers = new[np.searchsorted(train, given)]
        batch: Batch = sampler.sample(of_sampler({node_type: numbers}), planned.key, **more)
        # Labels are found by the task's own numbers.
        batch.seeds = {node_type: given}
        return batch

    return BatchSource(sample, train, batch_size_of(job, len(train)))


def make_timed_batches(
    parts: Parts, job: Job, node_type: str, times: Array, graph: CutGraph, train: Array, split: SeedSplit
) -> BatchSource:
    """Batches by time; `times` are those of all vertices of the type as seeds, and `split` takes this worker's seeds of
    a whole batch, because a seed's draws depend on its position in it.
    """
    sampler, of_sampler = _sampler_for(parts, job), unwrapping(graph)
    new = parts.partition.new_ids(train, node_type)

    def sample(seeds: Mapping[str, Array], planned: Planned) -> Batch:
        (whole,) = seeds.values()
        places = split.places(planned)
        given = whole[places]
        asked = new[np.searchsorted(train, given)], times[given], places
        numbers, seen, there = (of_sampler({node_type: each}) for each in asked)
        batch: Batch = sampler.sample(numbers, planned.key, times=seen, places=there)
        batch.seeds = {node_type: given}
        return batch

    return BatchSource(sample, train, job.batch_size)


def make_joint_batches(parts: Parts, job: Job, train: Array, new: Array) -> BatchSource:
    """For samplers that draw a batch as a whole: `sample` keeps this worker's share, and finds the seeds if need be.

    `train` are the training vertices, ascending, and `new` their numbers in the partitioned graph.
    """
    entry, remote = SAMPLERS[job.sampler], _sampling_tasks(parts)
    if remote is not None and entry.uses_clusters and is_first_worker(parts):
        # Its sampler tasks wait for them.
        offer_clusters(parts, job)
    sampler: Any = job_sampler(parts, job, new) if remote is None else remote
    draw, items, size = sampler.sample, train, job.batch_size
    if entry.items_per_batch is not None:
        draw, items = (sampler.sample, sampler.items) if remote is None else (remote.sample_items, remote.items())
        size = entry.items_per_batch(job)

    def sample(seeds: Mapping[str, Array], planned: Planned) -> Batch:
        (given,) = seeds.values()
        if entry.items_per_batch is None:
            given = new[np.searchsorted(train, given)]
        batch: Batch = draw(given, planned.key)
        assert batch.names is not None
        batch.seeds = {name: batch.names[name][: len(own)] for name, own in batch.seeds.items()}
        return batch

    return BatchSource(sample, items, size)


def make_parted_edge_batches(parts: Parts, job: Job, new: Mapping[str, Array], items: Array) -> BatchSource:
    """For tasks on edges: `items` are the training edges' positions, `new` the new numbers of all vertices, by type."""
    sampler = _sampler_for(parts, job)

    typed = len(parts.edge_types) > 1 or len(parts.partition.book.node_types) > 1

    def sample(
        seeds: Mapping[str, Array],
        planned: Planned,
        *,
        exclude: Exclude | None = None,
        times: Mapping[str, Array] | None = None,
        places: Mapping[str, Array] | None = None,
    ) -> Batch:
        numbers: Any = {name: new[name][these] for name, these in seeds.items()}
        more: dict[str, Any] = {"absent": parts.absent} if parts.absent else {}
        if isinstance(exclude, dict):
            more["exclude"] = {
                kind: np.stack([new[kind[0]][sources], new[kind[2]][targets]])
                for kind, (sources, targets) in exclude.items()
            }
        elif exclude is not None:
            (only,) = numbers
            more["exclude"] = new[only][exclude]
        if times is not None:
            more |= {"times": times, "places": _places_of(seeds) if places is None else places}
        if not typed:
            (numbers,) = numbers.values()
            more |= {name: next(iter(more[name].values())) for name in ("times", "places") if name in more}
        batch: Batch = sampler.sample(numbers, planned.key, **more)
        batch.seeds = dict(seeds)
        return batch

    return BatchSource(sample, items, batch_size_of(job, len(items)))


def _places_of(seeds: Mapping[str, Array]) -> dict[str, Array]:
    """The positions of all seeds of a whole batch, concatenated over types."""
    ends = np.cumsum([0, *map(len, seeds.values())])
    return {name: np.arange(first, last) for name, first, last in zip(seeds, ends[:-1], ends[1:], strict=True)}


def _shared(parts: Parts, job: Job, source: PartedSource, sampler: Any, edges: bool) -> SharedSampler:
    """A sampler that draws a batch for all workers, of which this one keeps its share."""
    setup, graph = parts.member.setup, source.whole_lists(job.sampler)
    share = vertex_share(setup.layout.shares, setup.task.rank)
    # One machine also normalises rows that no seed needs, so every worker must have all of them. And optimisers with
    # moments change learnable rows of a batch even without a gradient.
    finds_seeds = SAMPLERS[job.sampler].items_per_batch is not None
    every_input = finds_seeds and _learns_rows(parts, job, graph.node_type)
    return SharedSampler(graph, sampler, share, job.norm == "batch", every_input, edges)


def _learns_rows(parts: Parts, job: Job, node_type: str) -> bool:
    """Whether vertices have embeddings instead of features."""
    return job.features not in parts.describe(job.label)[0]["nodes"][node_type]["fields"]


def _sampler_for(parts: Parts, job: Job) -> Any:
    """The job's sampler, or the tasks that sample for this worker."""
    return _sampling_tasks(parts) or job_sampler(parts, job)


def _sampling_tasks(parts: Parts) -> RemoteSampler | None:
    """The tasks that sample for this worker, if there are any."""
    setup = parts.member.setup
    helpers = setup.layout.samplers_of(setup.task.rank)
    if not helpers:
        return None
    book = parts.partition.book
    counts = {name: book.count(name) for name in book.node_types}
    names = {name: parts.partition.original(name) for name in book.node_types}
    channels = [parts.member.endpoint.channel(task, "batches", 1) for task in helpers]
    return RemoteSampler(channels, SAMPLER, counts, names)


# How often a worker reads each row, counted in batches that are drawn ahead.

_COUNTED = 16
"""Batches drawn ahead."""


def read_counts(session: Session, share: Callable[[Planned], Planned]) -> dict[str, tuple[Array, Array]]:
    """(rows, how often each is read) in a worker's shares of the first batches, by node type with features."""
    drawn: dict[str, list[Array]] = {name: [np.empty(0, np.int64)] for name in session.inputs.sources}
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)
    for planned, _ in zip(schedule.from_position(), range(_COUNTED), strict=False):
        vertices = session.task.sample(share(planned)).vertices
        for name, rows in drawn.items():
            if name in vertices:
                rows.append(np.asarray(vertices[name], np.int64))
    found = {name: np.unique(np.concatenate(rows), return_counts=True) for name, rows in drawn.items()}
    return {name: (ids, counts) for name, (ids, counts) in found.items()}


# The task that draws whole batches for a worker.

_SAMPLER_THREADS = 2


def run_sampler(setup: Setup) -> int:
    """Serve batches until the run is over; returns the exit status.

    It answers from its start: preparing a sampler from the whole graph may take minutes, and workers must see that it
    lives.
    """
    with Member(setup, _SAMPLER_THREADS) as member:
        samplers: dict[str, Any] = {SAMPLER: None}
        serve_batches(member.endpoint, samplers)
        member.announce()
        member.await_tasks("store")
        parts, job = Parts(member), stored_job(setup.job, "The run's job")
        samplers[SAMPLER] = job_sampler(parts, with_edge_fields(job, parts.edge_fields()))
        member.stopped.wait()
    return 0
