"""Link prediction: true edges must score above false ones, in the whole graph or in that before a time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import SPLITS
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, EdgeType, TaskName, edge_key
from penstock.nn.scorer_table import chosen_scorer
from penstock.nn.scorers import ScorerSettings, build_scorer
from penstock.pipeline.stages import Batch
from penstock.progress import SILENT, Progress
from penstock.sampling.block import BatchKey
from penstock.sampling.links import (
    EdgeBatch,
    EdgeBatcher,
    NegativePolicy,
    PairBatcher,
    Reverse,
    drawn_candidates,
    find_reverse,
    known_edges,
    negatives_named,
    ranks,
    ranks_of_scores,
    split_edges,
)
from penstock.sampling.links.edge_ranks import RANKED_BYTES
from penstock.store.initial_rows import IDENTITY
from penstock.train.batch_source import BatchSource, EdgeTimes, edge_times, make_batch_source
from penstock.train.dataset.labels import LearnedLabels
from penstock.train.dataset.prepared_graph import choose_edge_type
from penstock.train.job import Job
from penstock.train.job_options import LinkOptions
from penstock.train.layerwise.inference import Inference
from penstock.train.metrics import default_metric
from penstock.train.tasks.ends import (
    DrawnEdges,
    Rows,
    RowsAtTimes,
    Share,
    all_rows,
    block_bytes,
    by_row,
    end_rows,
    mean_of_batch,
    pair_blocks,
    pair_bytes,
    rows_of_some,
)
from penstock.train.tasks.task import (
    ALL,
    Scores,
    Task,
    chosen_metric,
    edge_batches,
    items_in,
    known_split,
    of_learned,
    reported_metrics,
)
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

if TYPE_CHECKING:
    from penstock.sampling.device.links import EdgeSeeds

_REPORTED = ("mrr", "hits@1", "hits@10", "hits@50")


def make_negatives(options: LinkOptions) -> NegativePolicy:
    """The negative-sampling policy that a job names, with the options that it takes."""
    given: dict[str, Any] = {"corrupt": options.corrupt, "filtered": options.filtered}
    if options.negatives != "in-batch":
        given["k"] = options.negatives_per_edge
    return negatives_named(options.negatives, **given)


class ScoredPairs(NamedTuple):
    """Pairs [m, 2] of vertices, their scores, and the times for which they were scored, if sampled by time."""

    pairs: Array
    scores: Array
    times: Array | None = None


class LinkTask(DrawnEdges):
    """Learns one relation's edges; `graph` lacks those held out for validation and test."""

    name, facts = "link-prediction", TASK_FACTS["link-prediction"]

    def __init__(
        self,
        graph: Graph,
        kind: EdgeType,
        batches: BatchSource,
        job: Job,
        reverse: Reverse = "auto",
        share: Share | None = None,
        pairs: Array | None = None,
        functions: UserFunctions = NO_FUNCTIONS,
    ) -> None:
        """`reverse`: that of the relation, found if not given; `share`, where several workers train: this one's edges
        of a batch; `pairs`: the held-out edges that an epoch consists of, if it does not consist of training edges.
        """
        self._graph, self._kind, self._batches, self._options = graph, kind, batches, job
        self._share = share
        self.edge_type = kind
        self.learned = LearnedLabels(self.name, edge_key(kind))
        edges = graph.edges[kind]
        if edges.count == 0:
            raise PenstockError(f"Relation {edge_key(kind)} has no edges to learn from.", code="missing-data")
        self.items, self.batch_size, self.out = batches.items, batches.batch_size, job.hidden
        self.messages, self.sampler, self.redraws = batches.messages, batches.sampler, True
        # With layers, connected vertices already have similar rows, so the dot product is a good default.
        settings = ScorerSettings(init=IDENTITY)
        self.head: torch.nn.Module = build_scorer(
            chosen_scorer(job.scorer, self.facts.about), job.hidden, settings=settings
        )
        self.metric = chosen_metric(job.metric, default_metric(self.name), self.name, functions)
        self._ranked = reported_metrics(default_metric(self.name), _REPORTED, functions)
        self._loss, self.has_own_loss = functions.loss, functions.loss is not None
        self.losses: dict[str, float] = {}
        self.goes_through_lists = pairs is None
        apart = job.has_disjoint_seeds
        self.batcher = EdgeBatcher(graph, kind, make_negatives(job), reverse, disjoint=apart)
        held_out = [edges.held_out[name] for name in SPLITS if name in edges.held_out]
        self._known = known_edges(graph, kind, held_out, self.batcher.reverse)
        if pairs is not None:
            known = self._known, self.batcher.reverse
            self.batcher = PairBatcher(graph, pairs, kind, make_negatives(job), *known, apart)

    def readable(self, items: Array) -> dict[str, Array]:
        """Every vertex of both ends' types: negatives are drawn among them."""
        return {name: np.arange(self._graph.nodes[name].count) for name in (self._kind[0], self._kind[2])}

    def loss_bytes(self, items: int) -> int:
        """For the rows of both ends of every edge and of its negatives."""
        policy = self.batcher.negatives
        assert policy is not None
        ends = 2 if policy.corrupt == "both" else 1
        return pair_bytes(items * (1 + ends * policy.per_positive(items)), self.out)

    def evaluation_bytes(self, splits: Sequence[str]) -> int:
        """For two blocks of scores that edges are ranked by, and one block of pairs; where edges are ranked among drawn
        vertices, also these, and those of each edge side by side.
        """
        asked = max((len(self.items_of(split)) for split in splits), default=0)
        candidates = self._options.rank_against or self._known.num_destinations
        scores = min(RANKED_BYTES, 8 * asked * candidates)
        drawn = 2 * 8 * asked * self._options.rank_against
        return scores + drawn + block_bytes(asked * candidates, self.out)

    def label(self, batch: Batch) -> None:
        """Add the pairs to score, as rows of the batch's seeds."""
        if self._options.link_loss == "bce" or self.has_own_loss:
            rows, columns, true = batch.links.pairs()
        else:
            rows, columns, true = batch.links.ranking()
        batch.labels = {"rows": rows.astype(np.int64), "columns": columns.astype(np.int64), "true": true}

    def labels_of(self, positions: Array) -> Array | None:
        """None: which edges there are is all that is learned."""
        return None

    def fixed_labels(self, pairs: "EdgeSeeds", values: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """The labels of a batch at fixed addresses on a device, as `loss` reads them."""
        if self._options.link_loss != "bce":
            weights = pairs.weights[:, 0]
            return {"rows": pairs.rows, "columns": pairs.columns, "true": pairs.counts, "weights": weights}
        true = torch.zeros_like(pairs.weights)
        true[:, 0] = 1
        found = {"rows": pairs.rows, "columns": pairs.columns, "true": true, "weights": pairs.weights}
        return {name: each.view(-1) for name, each in found.items()}

    def loss(self, out: Rows, batch: Batch) -> torch.Tensor:
        """Binary cross-entropy of every pair, or cross-entropy of each true edge among its negatives."""
        sources, destinations = end_rows(out, self._kind, self.out, batch.labels["rows"])
        pairs, weights = batch.labels, batch.labels.get("weights")
        scores = self.head(sources[pairs["rows"]], destinations[pairs["columns"]])
        whole = batch.links.whole
        if self._loss is not None:
            losses = by_row(self._loss(scores, pairs["true"]), len(scores))
            return mean_of_batch(losses, None if whole is None else whole.pairs)
        if self._options.link_loss == "bce":
            losses = functional.binary_cross_entropy_with_logits(scores, pairs["true"], reduction="none")
            return mean_of_batch(losses, None if whole is None else whole.pairs, weights)
        scores = scores.masked_fill(~pairs["true"], float("-inf"))
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        losses = functional.cross_entropy(scores, first, reduction="none")
        return mean_of_batch(losses, None if whole is None else whole.positives, weights)

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of the ranks of held-out edges among vertices that are not true partners."""
        held_out = self._graph.edges[self._kind].held_out
        pairs = {name: np.asarray(held_out[name]) for name in splits if len(held_out.get(name, ()))}
        if not pairs:
            return {}
        false = dict[str, Array]()
        if self.metric.takes != "ranks":
            for name, some in pairs.items():
                given = held_out.get(f"{name}_negative")
                false[name] = self._false(some) if given is None else np.asarray(given)
        sources, destinations = self._rows_to_rank(inference, pairs, false, progress)
        return {
            name: self._scores(inference, sources, destinations, some, false.get(name)) for name, some in pairs.items()
        }

    def items_of(self, split: str) -> Array:
        """The held-out pairs [m, 2] of a split."""
        return np.asarray(known_split(self._graph.edges[self._kind].held_out, split, " of held-out edges"))

    def score_pairs(
        self, inference: Inference, pairs: Array, times: Array | None = None, progress: Progress = SILENT
    ) -> Array:
        """Scores of some pairs [m, 2]."""
        if times is not None:
            raise PenstockError(
                "The run was not sampled by time, so that scores do not depend on one: give pairs of (source id,"
                " destination id).",
                code="unsupported-combination",
            )
        sources, destinations = all_rows(self._graph, self._kind, inference, progress)
        return self._of_pairs(sources, destinations, pairs)

    def scored(self, inference: Inference, split: str, progress: Progress = SILENT) -> "ScoredPairs":
        """The held-out pairs of a split with their scores."""
        pairs = self.items_of(split)
        return ScoredPairs(pairs, self.score_pairs(inference, pairs, progress=progress))

    def _rows_to_rank(
        self, inference: Inference, pairs: dict[str, Array], false: dict[str, Array], progress: Progress
    ) -> tuple[Any, Any]:
        """Rows of both ends' types: of what `_scores` reads where others change no bit of them, else of all."""
        if not self._options.rank_against or not inference.is_same_for_few:
            return all_rows(self._graph, self._kind, inference, progress)
        drawn = [drawn_candidates(some, self._known, self._options.rank_against) for some in pairs.values()]
        read = [*pairs.values(), *false.values()]
        sources = np.concatenate([some[:, 0] for some in read])
        destinations = np.concatenate([*(some[:, 1] for some in read), *drawn])
        return rows_of_some(self._kind, sources, destinations, inference, progress)

    def _scores(
        self, inference: Inference, sources: Any, destinations: Any, pairs: Array, false: Array | None
    ) -> dict[str, float]:
        against: Any = self._options.rank_against or "all"
        scorer = self._scorer(sources, destinations)
        found = inference.in_parts(len(pairs), lambda some: ranks(scorer, pairs[some], self._known, against))
        scores = {metric.name: metric.compute(found, None) for metric in self._ranked}
        if self.metric.takes == "ranks":
            return {self.metric.name: self.metric.compute(found, None), **scores}
        assert false is not None
        both = np.concatenate([pairs, false])
        outputs = inference.in_parts(len(both), lambda some: self._of_pairs(sources, destinations, both[some]))
        labels = np.repeat([1, 0], [len(pairs), len(false)])
        return {self.metric.name: self.metric.compute(outputs, labels), **scores}

    def _false(self, pairs: Array) -> Array:
        """One random false pair for every held-out one, for graphs that have none."""
        policy = negatives_named("uniform", k=1, filtered=True)
        drawn = EdgeBatcher(self._graph, self._kind, policy, self.batcher.reverse, known=self._known)
        links = drawn.batch_of_pairs(pairs, BatchKey(0, 0, 0))
        return np.stack([links.source, links.negative_destination[:, 0]], 1)

    def _of_pairs(self, sources: Any, destinations: Any, pairs: Array) -> Array:
        ends = torch.from_numpy(pairs.astype(np.int64))
        scores = torch.empty(len(ends))
        with torch.no_grad():
            for some in pair_blocks(len(ends), self.out):
                scores[some] = self.head(sources[ends[some, 0]], destinations[ends[some, 1]]).float().cpu()
        return np.asarray(scores.numpy())

    def _scorer(self, sources: Any, destinations: Any) -> Any:
        def score(kept: Array, others: Array | None) -> Array:
            """Scores [kept, others]: against the given rows of others, or against all destinations."""
            columns = len(destinations) if others is None else others.shape[1]
            scores = torch.empty(len(kept), columns)
            rows = torch.from_numpy(kept.astype(np.int64))
            with torch.no_grad():
                for part in pair_blocks(columns, self.out):
                    chosen = None if others is None else torch.from_numpy(others[:, part].astype(np.int64, copy=False))
                    for some in pair_blocks(len(kept), self.out * (part.stop - part.start)):
                        far = destinations[None, part] if chosen is None else destinations[chosen[some]]
                        scores[some, part] = self.head(sources[rows[some]][:, None], far).float().cpu()
            return np.asarray(scores.numpy())

        return score


# Link prediction by time: a pair is scored by its ends' neighbourhoods before a given time. The earliest edges are
# learned from, the latest are for the test. All of them stay in the graph: an edge is visible to those that come after
# it, in training and in evaluation alike.

_EVALUATED = BatchKey(0, 0, 0)
"""The key by which the candidates of an evaluation are drawn."""


class TimedLinkTask(LinkTask):
    """Learns one relation's edges, each from edges before it; negatives have their positive's time."""

    times: EdgeTimes

    def __init__(
        self,
        graph: Graph,
        kind: EdgeType,
        batches: BatchSource,
        job: Job,
        reverse: Reverse,
        times: EdgeTimes,
        share: Share | None = None,
        functions: UserFunctions = NO_FUNCTIONS,
    ) -> None:
        """As for `LinkTask`; `times` are those of the edges."""
        super().__init__(graph, kind, batches, job, reverse, share, functions=functions)
        if not job.rank_against:
            raise PenstockError(
                "rank_against 0 would compute every vertex anew at the time of each held-out edge: give a number of"
                " vertices to rank edges against.",
                code="unsupported-combination",
            )
        self.times, self._splits = times, time_splits(job, times)
        self.batcher = self._drawing(make_negatives(job))

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of the ranks of each split's edges among vertices that were not true partners by then."""
        rows = RowsAtTimes(self._kind, inference, self.times)
        return {name: self._of_split(inference, rows, self._splits[name]) for name in splits if self._has(name)}

    def items_of(self, split: str) -> Array:
        """The edges of a split, as positions in the lists."""
        return known_split(self._splits, split)

    def score_pairs(
        self, inference: Inference, pairs: Array, times: Array | None = None, progress: Progress = SILENT
    ) -> Array:
        """Scores of some pairs [m, 2], each from the graph before its time."""
        if times is None:
            raise PenstockError(
                "The run was sampled by time: give (source id, destination id, time) for each pair to score.",
                code="option-missing",
            )
        rows, batcher = RowsAtTimes(self._kind, inference, self.times), self._drawing(None)
        return self._scored(
            rows,
            (
                batcher.batch_of_pairs(pairs[some], _EVALUATED, times[some])
                for some in pair_blocks(len(pairs), self.out)
            ),
        )

    def scored(self, inference: Inference, split: str, progress: Progress = SILENT) -> ScoredPairs:
        """The edges of a split with their scores and times."""
        positions, batcher = self.items_of(split), self._drawing(None)
        batches = [batcher.batch(positions[some], _EVALUATED) for some in pair_blocks(len(positions), self.out)]
        rows = RowsAtTimes(self._kind, inference, self.times)
        pairs = [np.stack([links.source, links.destination], 1) for links in batches]
        times = np.asarray(self.times.values[positions])
        return ScoredPairs(
            np.concatenate([np.empty((0, 2), np.int64), *pairs]), self._scored(rows, iter(batches)), times
        )

    def _of_split(self, inference: Inference, rows: RowsAtTimes, positions: Array) -> dict[str, float]:
        against = self._drawing(negatives_named("uniform", k=self._options.rank_against, filtered=True))

        def ranks(some: slice) -> Array:
            found = [self._ranks(rows, links) for links in self._batches_of(against, positions[some])]
            return np.concatenate([np.empty(0), *found])

        ranked = inference.in_parts(len(positions), ranks)
        scores = {metric.name: metric.compute(ranked, None) for metric in self._ranked}
        if self.metric.takes == "ranks":
            return {self.metric.name: self.metric.compute(ranked, None), **scores}
        one = self._drawing(negatives_named("uniform", k=1, filtered=True))

        def both(some: slice) -> Array:
            """[edges, 2]: the score of each edge, and of a false one at its time."""
            found = [self._against(rows, links)[0] for links in self._batches_of(one, positions[some])]
            return np.concatenate([np.empty((0, 2), np.float32), *found])

        outputs = inference.in_parts(len(positions), both).T.ravel()
        labels = np.repeat([1, 0], len(positions))
        return {self.metric.name: self.metric.compute(outputs, labels), **scores}

    def _ranks(self, rows: RowsAtTimes, links: EdgeBatch) -> Array:
        scores, counts = self._against(rows, links)
        return ranks_of_scores(scores[:, 0], scores[:, 1:], counts[:, 1:])

    def _against(self, rows: RowsAtTimes, links: EdgeBatch) -> tuple[Array, Array]:
        """Scores [edges, 1 + candidates] of edges and of their negatives, and which of them count."""
        near, far, counts = links.ranking()
        with torch.no_grad():
            sources, destinations = rows.of_vertices(links)
            scores = self.head(sources[torch.from_numpy(near)], destinations[torch.from_numpy(far)])
        return scores.float().cpu().numpy(), counts

    def _batches_of(self, batcher: EdgeBatcher, positions: Array) -> Iterator[EdgeBatch]:
        """Batches of some edges, with their negatives."""
        assert batcher.negatives is not None
        width = self.out * (1 + batcher.negatives.per_positive(1))
        return (batcher.batch(positions[some], _EVALUATED) for some in pair_blocks(len(positions), width))

    def _scored(self, rows: RowsAtTimes, batches: Iterator[EdgeBatch]) -> Array:
        with torch.no_grad():
            found = [self.head(*rows.of(links)).float().cpu().numpy() for links in batches]
        return np.concatenate([np.empty(0, np.float32), *found])

    def _drawing(self, negatives: NegativePolicy | None) -> EdgeBatcher:
        return EdgeBatcher(self._graph, self._kind, negatives, self.batcher.reverse, times=self.times.values)

    def _has(self, split: str) -> bool:
        return len(self._splits.get(split, ())) > 0


def time_splits(job: Job, times: EdgeTimes) -> Mapping[str, Array]:
    """Positions of the edges to learn from, and of those held out: the latest are for the test."""
    val, test = job.held_out
    return times.splits((1 - val - test, val, test))


def check_no_held_out(graph: Graph, kind: EdgeType) -> None:
    """Refuse held-out edges that are stored beside the lists: they have no times."""
    held = [name for name, pairs in graph.edges[kind].held_out.items() if len(pairs)]
    if held:
        raise PenstockError(
            f"The held-out edges ({', '.join(held)}) of {edge_key(kind)} have no times: put them among the other"
            " edges, and the latest are held out by `held_out`.",
            code="unsupported-combination",
        )


def make_link_task(
    name: TaskName, graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    """Links of one relation, and the graph without those that are held out."""
    kind = choose_edge_type(graph, of_learned(job, learned), None)
    if (times := edge_times(job, graph, kind)) is not None:
        return _timed_link_task(graph, job, kind, times, split, functions), graph
    if any(job.held_out) and not any(len(pairs) for pairs in graph.edges[kind].held_out.values()):
        val, test = job.held_out
        graph = split_edges(graph, kind, (val, test), job.split_number)
    count = graph.edges[kind].count
    training, reverse = np.arange(count, dtype=index_dtype(count)), find_reverse(graph, kind)
    if split not in ("train", ALL):
        pairs = items_in(graph.edges[kind].held_out, split)
        batches = make_batch_source(job, graph, np.arange(len(pairs)), excluding=True)
        return LinkTask(graph, kind, batches, job, reverse, pairs=pairs, functions=functions), graph
    batches = edge_batches(job, graph, kind, training, reverse, learned)
    return LinkTask(graph, kind, batches, job, reverse, functions=functions), graph


def _timed_link_task(
    graph: Graph, job: Job, kind: EdgeType, times: EdgeTimes, split: str, functions: UserFunctions
) -> Task:
    """All edges stay in the graph: what is later than an edge is out of its reach."""
    check_no_held_out(graph, kind)
    batches = make_batch_source(job, graph, items_in(time_splits(job, times), split), excluding=True)
    return TimedLinkTask(graph, kind, batches, job, find_reverse(graph, kind), times, functions=functions)
