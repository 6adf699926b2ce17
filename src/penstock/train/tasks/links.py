"""Link prediction: true edges must score above false ones."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.scorers import ScorerSettings, build_scorer
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.progress import SILENT, Progress
from penstock.sampling.key import BatchKey
from penstock.sampling.links import (
    EdgeBatcher,
    NegativePolicy,
    PairBatcher,
    Reverse,
    known_edges,
    negatives_named,
    ranks,
)
from penstock.sampling.links.edge_ranks import RANKED_BYTES
from penstock.store.initial_rows import IDENTITY
from penstock.train.batch_source import BatchSource
from penstock.train.job import Job
from penstock.train.layerwise.inference import Inference
from penstock.train.learned_labels import LearnedLabels
from penstock.train.link_options import LinkOptions
from penstock.train.metrics import default_metric
from penstock.train.tasks.ends import (
    Rows,
    Share,
    all_rows,
    block_bytes,
    divided_examples,
    end_rows,
    examples_of,
    mean_of_batch,
    own_losses,
    pair_blocks,
    pair_bytes,
    sample_ends,
)
from penstock.train.tasks.task import Owners, Scores, chosen_metric, reported_metrics
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

_REPORTED = ("mrr", "hits@1", "hits@10", "hits@50")


def make_negatives(options: LinkOptions) -> NegativePolicy:
    """The policy a job names, with those of its options that it takes."""
    given: dict[str, Any] = {"corrupt": options.corrupt, "filtered": options.filtered}
    if options.negatives != "in-batch":
        given["k"] = options.negatives_per_edge
    return negatives_named(options.negatives, **given)


class ScoredPairs(NamedTuple):
    """Pairs [m, 2] of vertices, their scores, and the times at which they were scored, where these count."""

    pairs: Array
    scores: Array
    times: Array | None = None


class LinkTask:
    """Learns one relation's edges; `graph` is without those held out for validation and test."""

    name: Literal["link-prediction"] = "link-prediction"

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
        """`reverse`: of the relation, looked for if not known; `share`, where several workers train: this one's edges
        of a batch; `pairs`, where an epoch goes through held-out edges: these."""
        self._graph, self._kind, self._batches, self._options = graph, kind, batches, job
        self._share = share
        self.edge_type = kind
        self.learned = LearnedLabels(self.name, edge_key(kind))
        edges = graph.edges[kind]
        if edges.count == 0:
            raise PenstockError(f"Relation {edge_key(kind)} has no edges to learn from.", code="missing-data")
        self.items, self.batch_size, self.out = batches.items, batches.batch_size, job.hidden
        self.messages, self.redraws = batches.messages, True
        # A model with layers brings neighbours together: the dot product is a good beginning.
        settings = ScorerSettings(init=IDENTITY)
        self.head: torch.nn.Module = build_scorer(
            "dot" if job.scorer == "auto" else job.scorer, job.hidden, settings=settings
        )
        self.metric = chosen_metric(job.metric, default_metric(self.name), self.name, functions)
        self._ranked = reported_metrics(default_metric(self.name), _REPORTED, functions)
        self._loss, self.has_own_loss = functions.loss, functions.loss is not None
        self.losses: dict[str, float] = {}
        self.goes_through_lists = pairs is None
        apart = job.has_disjoint_seeds
        self._batcher = EdgeBatcher(graph, kind, make_negatives(job), reverse, disjoint=apart)
        held_out = [edges.held_out[name] for name in SPLITS if name in edges.held_out]
        self._known = known_edges(graph, kind, held_out, self._batcher.reverse)
        if pairs is not None:
            known = self._known, self._batcher.reverse
            self._batcher = PairBatcher(graph, pairs, kind, make_negatives(job), *known, apart)

    def sample(self, planned: Planned) -> Batch:
        """Edges with their negatives, and the neighbourhoods of all their ends."""
        return sample_ends(self._batcher, self._batches, planned, self._share)

    def examples(self, planned: Planned) -> Batch:
        """Edges with the negatives of their epoch."""
        batch = examples_of(self._batcher, planned, self._share)
        self.label(batch)
        return batch

    def divided(self, planned: Planned, owners: Owners, world: int) -> list[Batch]:
        """Each worker has the edges that lead to its own vertices."""
        return divided_examples(self._batcher, planned, owners, world)

    def readable(self, items: Array) -> dict[str, Array]:
        """Every vertex of both ends' types: negatives are drawn among them."""
        return {name: np.arange(self._graph.nodes[name].count) for name in (self._kind[0], self._kind[2])}

    def loss_bytes(self, items: int) -> int:
        """Both ends of every edge and of what stands against it."""
        policy = self._batcher.negatives
        assert policy is not None
        ends = 2 if policy.corrupt == "both" else 1
        return pair_bytes(items * (1 + ends * policy.per_positive(items)), self.out)

    def evaluation_bytes(self, splits: Sequence[str]) -> int:
        """Scores that edges are ranked by, a block and the one before it, and a block of pairs."""
        asked = max((len(self.items_of(split)) for split in splits), default=0)
        candidates = self._options.rank_against or self._known.num_destinations
        scores = min(RANKED_BYTES, 8 * asked * candidates)
        return scores + block_bytes(asked * candidates, self.out)

    def label(self, batch: Batch) -> None:
        """The pairs to score, as rows of the batch's seeds."""
        if self._options.link_loss == "bce" or self.has_own_loss:
            rows, columns, true = batch.links.pairs()
        else:
            rows, columns, true = batch.links.ranking()
        batch.labels = {"rows": rows.astype(np.int64), "columns": columns.astype(np.int64), "true": true}

    def loss(self, out: Rows, batch: Batch) -> torch.Tensor:
        """Binary cross-entropy of every pair, or of each true edge among its false ones."""
        sources, destinations = end_rows(out, self._kind, self.out, batch.labels["rows"])
        pairs = batch.labels
        scores = self.head(sources[pairs["rows"]], destinations[pairs["columns"]])
        whole = batch.links.whole
        if self._loss is not None:
            losses = own_losses(self._loss, scores, pairs["true"])
            return mean_of_batch(losses, None if whole is None else whole.pairs)
        if self._options.link_loss == "bce":
            losses = functional.binary_cross_entropy_with_logits(scores, pairs["true"], reduction="none")
            return mean_of_batch(losses, None if whole is None else whole.pairs)
        scores = scores.masked_fill(~pairs["true"], float("-inf"))
        first = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
        losses = functional.cross_entropy(scores, first, reduction="none")
        return mean_of_batch(losses, None if whole is None else whole.positives)

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Ranks of the held-out edges of each split among vertices that are not true partners."""
        held_out = self._graph.edges[self._kind].held_out
        pairs = {name: np.asarray(held_out[name]) for name in splits if len(held_out.get(name, ()))}
        if not pairs:
            return {}
        sources, destinations = all_rows(self._graph, self._kind, inference, progress)
        return {
            name: self._scores(inference, sources, destinations, some, held_out.get(f"{name}_negative"))
            for name, some in pairs.items()
        }

    def items_of(self, split: str) -> Array:
        """The held-out pairs [m, 2] of a split."""
        held_out = self._graph.edges[self._kind].held_out
        if split not in held_out:
            raise PenstockError(
                f"There is no split {split!r} of held-out edges{nearest(split, held_out)}", code="split-missing"
            )
        return np.asarray(held_out[split])

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

    def _scores(
        self, inference: Inference, sources: torch.Tensor, destinations: torch.Tensor, pairs: Array, false: Array | None
    ) -> dict[str, float]:
        against: Any = self._options.rank_against or "all"
        scorer = self._scorer(sources, destinations)
        found = inference.in_parts(len(pairs), lambda some: ranks(scorer, pairs[some], self._known, against))
        scores = {metric.name: metric.compute(found, None) for metric in self._ranked}
        if self.metric.takes == "ranks":
            return {self.metric.name: self.metric.compute(found, None), **scores}
        false = self._false(pairs) if false is None else np.asarray(false)
        both = np.concatenate([pairs, false])
        outputs = inference.in_parts(len(both), lambda some: self._of_pairs(sources, destinations, both[some]))
        labels = np.repeat([1, 0], [len(pairs), len(false)])
        return {self.metric.name: self.metric.compute(outputs, labels), **scores}

    def _false(self, pairs: Array) -> Array:
        """One false pair for every held-out one, for graphs that bring none."""
        policy = negatives_named("uniform", k=1, filtered=True)
        drawn = EdgeBatcher(self._graph, self._kind, policy, self._batcher.reverse, known=self._known)
        links = drawn.batch_of_pairs(pairs, BatchKey(0, 0, 0))
        return np.stack([links.source, links.negative_destination[:, 0]], 1)

    def _of_pairs(self, sources: torch.Tensor, destinations: torch.Tensor, pairs: Array) -> Array:
        ends = torch.from_numpy(pairs.astype(np.int64))
        scores = torch.empty(len(ends))
        with torch.no_grad():
            for some in pair_blocks(len(ends), self.out):
                scores[some] = self.head(sources[ends[some, 0]], destinations[ends[some, 1]]).float().cpu()
        return np.asarray(scores.numpy())

    def _scorer(self, sources: torch.Tensor, destinations: torch.Tensor) -> Any:
        def score(kept: Array, others: Array | None) -> Array:
            """[kept, others]: a row of others each, or all destinations."""
            columns = len(destinations) if others is None else others.shape[1]
            scores = torch.empty(len(kept), columns)
            rows = torch.from_numpy(kept.astype(np.int64))
            with torch.no_grad():
                for part in pair_blocks(columns, self.out):
                    chosen = None if others is None else torch.from_numpy(others[:, part].astype(np.int64))
                    for some in pair_blocks(len(kept), self.out * (part.stop - part.start)):
                        far = destinations[None, part] if chosen is None else destinations[chosen[some]]
                        scores[some, part] = self.head(sources[rows[some], None], far).float().cpu()
            return np.asarray(scores.numpy())

        return score
