"""Link prediction by time: a pair is scored as both ends were before the moment that is asked about.

The earliest edges are learned from, the latest are for the test. All of them stay in the graph: an edge is in reach of
those that come after it, in training and in evaluation alike.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.progress import SILENT, Progress
from penstock.sampling.key import BatchKey
from penstock.sampling.links import EdgeBatch, EdgeBatcher, NegativePolicy, Reverse, negatives_named, ranks_of_scores
from penstock.train.batch_source import BatchSource
from penstock.train.edge_times import EdgeTimes
from penstock.train.job import Job
from penstock.train.layerwise.inference import Inference
from penstock.train.tasks.ends import RowsAtTimes, Share, pair_blocks, sample_ends
from penstock.train.tasks.links import LinkTask, ScoredPairs, make_negatives
from penstock.train.tasks.task import Scores
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

_EVALUATED = BatchKey(0, 0, 0)
"""The key of the candidates of an evaluation."""


class TimedLinkTask(LinkTask):
    """Learns one relation's edges, each from what was before it; negatives have their positive's time."""

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
        self._batcher = self._drawing(make_negatives(job))

    def sample(self, planned: Planned) -> Batch:
        """Edges with their negatives, and the neighbourhoods of all their ends before each edge's time."""
        return sample_ends(self._batcher, self._batches, planned, self._share, self.times)

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Ranks of each split's edges among vertices that were not true partners by then."""
        rows = RowsAtTimes(self._kind, inference, self.times)
        return {name: self._of_split(inference, rows, self._splits[name]) for name in splits if self._has(name)}

    def items_of(self, split: str) -> Array:
        """The edges of a split, as positions in the lists."""
        if split not in self._splits:
            raise PenstockError(f"There is no split {split!r}{nearest(split, self._splits)}", code="split-missing")
        return self._splits[split]

    def score_pairs(
        self, inference: Inference, pairs: Array, times: Array | None = None, progress: Progress = SILENT
    ) -> Array:
        """Scores of some pairs [m, 2], each before its time."""
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
        """Scores [edges, 1 + candidates] of edges and of what stands against them, and which of them count."""
        near, far, counts = links.ranking()
        with torch.no_grad():
            sources, destinations = rows.of_vertices(links)
            scores = self.head(sources[torch.from_numpy(near)], destinations[torch.from_numpy(far)])
        return scores.float().cpu().numpy(), counts

    def _batches_of(self, batcher: EdgeBatcher, positions: Array) -> Iterator[EdgeBatch]:
        """Some edges at a time, with what stands against them."""
        assert batcher.negatives is not None
        width = self.out * (1 + batcher.negatives.per_positive(1))
        return (batcher.batch(positions[some], _EVALUATED) for some in pair_blocks(len(positions), width))

    def _scored(self, rows: RowsAtTimes, batches: Iterator[EdgeBatch]) -> Array:
        with torch.no_grad():
            found = [self.head(*rows.of(links)).float().cpu().numpy() for links in batches]
        return np.concatenate([np.empty(0, np.float32), *found])

    def _drawing(self, negatives: NegativePolicy | None) -> EdgeBatcher:
        return EdgeBatcher(self._graph, self._kind, negatives, self._batcher.reverse, times=self.times.values)

    def _has(self, split: str) -> bool:
        return len(self._splits.get(split, ())) > 0


def time_splits(job: Job, times: EdgeTimes) -> Mapping[str, Array]:
    """Positions of the edges to learn from, and of those held out: the latest are for the test."""
    val, test = job.held_out
    return times.splits((1 - val - test, val, test))


def check_no_held_out(graph: Graph, kind: EdgeType) -> None:
    """Refuse edges that are held out beside the lists: nobody knows when they were."""
    held = [name for name, pairs in graph.edges[kind].held_out.items() if len(pairs)]
    if held:
        raise PenstockError(
            f"The held-out edges ({', '.join(held)}) of {edge_key(kind)} have no times: put them among the other"
            " edges, and the latest are held out by `held_out`.",
            code="unsupported-combination",
        )
