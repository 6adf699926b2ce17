"""Knowledge graph completion: predict the missing entity of a triple, over all relations at once."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import SPLITS
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, EdgeType, TaskName
from penstock.nn.scorer_table import SCORERS, chosen_scorer
from penstock.nn.scorers import End, RelationScorer, ScorerSettings, build_scorer
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.progress import SILENT, Progress
from penstock.sampling.block import MiniBatch, unwrapping
from penstock.sampling.links import split_edges
from penstock.sampling.links.edge_ranks import RANKED_BYTES
from penstock.sampling.triples import (
    DrawnEntities,
    Entities,
    KnownTriples,
    TripleBatch,
    TripleBatcher,
    Triples,
    filtered_ranks,
    held_out_triples,
    relations_of,
    training_triples,
    triple_negatives,
)
from penstock.train.batch_source import BatchSource, make_batch_source
from penstock.train.dataset.labels import LearnedLabels
from penstock.train.job import Job
from penstock.train.job_options import TripleOptions
from penstock.train.layerwise.inference import Inference
from penstock.train.metrics import default_metric
from penstock.train.tasks.ends import Rows, mean_of_batch, pair_blocks
from penstock.train.tasks.task import ALL, Owners, Scores, Task, chosen_metric, reported_metrics
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

TripleShare = Callable[[TripleBatch], Array]
"""Which triples of a batch belong to this worker: their positions, ascending."""
_REPORTED = ("mrr", "hits@1", "hits@3", "hits@10")
_ENDS: dict[str, tuple[End, ...]] = {
    "destination": ("destination",),
    "source": ("source",),
    "both": ("destination", "source"),
}
_BOTH: tuple[End, ...] = ("destination", "source")


class TripleTask:
    """Learns the triples of all relations; `graph` lacks those held out for validation and test."""

    name, facts = "knowledge-graph-completion", TASK_FACTS["knowledge-graph-completion"]
    has_own_loss = False

    def __init__(
        self,
        graph: Graph,
        batches: BatchSource,
        job: Job,
        share: TripleShare | None = None,
        functions: UserFunctions = NO_FUNCTIONS,
    ) -> None:
        """`share`, where several workers train: this one's triples of a batch."""
        self._graph, self._batches, self._job, self._share = graph, batches, job, share
        self._unwrapped = unwrapping(graph)
        self.relations = relations_of(graph.edges)
        self.entities = Entities({name: nodes.count for name, nodes in graph.nodes.items()}, self.relations)
        triples = training_triples(graph, self.relations, self.entities)
        if not triples.total:
            raise PenstockError("The graph has no triples to learn from: check its edges.", code="missing-data")
        words = [relation for _, relation, _ in self.relations]
        self.learned = LearnedLabels(self.name, "triples", None, len(words), False, words)
        self.items, self.batch_size = batches.items, batches.batch_size
        self.out = job.hidden if job.has_layers else job.embedding_width
        self.messages, self.redraws = batches.messages, True
        self.head: torch.nn.Module = self._build_scorer()
        if functions.loss is not None:
            raise PenstockError(
                "A knowledge graph's triples are learned by `loss` bce, softmax or margin: name one of these.",
                code="unsupported-combination",
            )
        self.metric = chosen_metric(job.metric, default_metric(self.name), self.name, functions)
        self._metrics = reported_metrics(self.metric, _REPORTED, functions)
        self.losses: dict[str, float] = {}
        policy = triple_negatives(
            job.negatives, job.negatives_per_edge, job.negatives_group, job.negatives_power, job.filtered
        )
        known = KnownTriples(triples, self.entities.count)
        sends = list(graph.edges) if job.has_layers else []
        self.batcher = TripleBatcher(triples, self.entities, self.relations, sends, policy, _ENDS[job.corrupt], known)
        self._mean_weight = float(np.mean(_frequency_weights(known, triples))) if self.weighs else 1.0
        self._all: KnownTriples | None = None

    @property
    def weighs(self) -> bool:
        """Whether triples have different weights in the loss."""
        return self._job.triple_weights != "none"

    def weights_of(self, triples: Triples) -> Array:
        """The weight of each triple in the loss, float32; the mean over all training triples is 1."""
        found = _frequency_weights(self.batcher.known, triples) / self._mean_weight
        return found.astype(np.float32)

    def sample(self, planned: Planned) -> Batch:
        links = self._links(planned)
        batch = self._batches.sample(links.nodes, planned, exclude=self._unwrapped(links.exclude))
        batch.links = links
        return batch

    def examples(self, planned: Planned) -> Batch:
        """Triples with the negatives of their epoch."""
        batch = _bare(self._links(planned))
        self.label(batch)
        return batch

    def divided(self, planned: Planned, owners: Owners, world: int) -> list[Batch]:
        """Each worker has the triples that lead to its own vertices."""
        links = self.batcher.batch(planned.seeds, planned.key)
        ranks = np.empty(len(links), np.int64)
        low, _ = self.entities.limits(links.triples.relation, "destination")
        for number in np.unique(links.triples.relation):
            some = np.flatnonzero(links.triples.relation == number)
            ranks[some] = owners(self.relations[number][2], links.triples.tail[some] - low[some])
        return [_bare(self.batcher.share(links, np.flatnonzero(ranks == rank))) for rank in range(world)]

    def readable(self, items: Array) -> dict[str, Array]:
        """Every entity: negatives are drawn among them."""
        return {name: np.arange(self._graph.nodes[name].count) for name in self.entities.types}

    def loss_bytes(self, items: int) -> int:
        """For the scores of each triple and its negatives, with gradients, and the rows of both."""
        k = self.batcher.negatives.per_triple(self.entities.count)
        return 4 * len(self.batcher.ends) * (4 * items * k + 8 * self.out * items)

    def evaluation_bytes(self, splits: Sequence[str]) -> int:
        """For the known triples, sorted by either end, and the scores of held-out ones with every entity: a block, the
        distances that it is computed from, and the block before it.
        """
        asked, row = [self.items_of_split(split).total for split in splits], 4 * self.entities.count
        scores = max(row, min(RANKED_BYTES, row * max(asked, default=0)))
        return 3 * scores + 8 * 8 * (self.batcher.triples.total + sum(asked)) if any(asked) else 0

    def label(self, batch: Batch) -> None:
        """Add the rows of the batch's entities, by which the loss finds them."""
        links: TripleBatch = batch.links
        batch.labels = {
            "head": links.rows(links.triples.head),
            "tail": links.rows(links.triples.tail),
            "relation": links.triples.relation,
            **{end: self._labelled(links, drawn) for end, drawn in links.corrupted.items()},
            **({"weight": self.weights_of(links.triples)} if self.weighs else {}),
        }

    def _labelled(self, links: TripleBatch, drawn: DrawnEntities) -> dict[str, Array]:
        """The drawn entities by row; left out where they are all of the batch's, in order."""
        every = drawn.entities.shape == (1, len(links.numbers)) and not self.batcher.negatives.k
        return {"masked": drawn.masked} if every else {"rows": links.rows(drawn.entities), "masked": drawn.masked}

    def loss(self, out: Rows, batch: Batch) -> torch.Tensor:
        """The mean over the triples and the ends that are replaced."""
        scorer, job, given = self.scorer, self._job, batch.labels
        rows = self._joined(out, given["head"])
        ends = {"source": rows[given["head"]], "destination": rows[given["tail"]]}
        losses = torch.zeros(len(given["head"]), device=rows.device)
        for end in self.batcher.ends:
            kept = ends["source" if end == "destination" else "destination"]
            given_end, group = given[end], batch.links.corrupted[end].group

            def against(queries: torch.Tensor, drawn: Any = given_end, group: int = group) -> torch.Tensor:
                return self._against(queries, rows, drawn, group)

            near = TripleRows(kept, ends[end], given["relation"], end)
            losses = losses + loss_by_triple(scorer, job, job.link_loss, near, against) / len(self.batcher.ends)
        heads, tails = ends["source"], ends["destination"]
        losses = losses + penalty_by_triple(scorer, job, heads, tails, given["relation"], self.batcher.ends)
        if self.weighs:
            losses = losses * given["weight"]
        whole = batch.links.whole
        return mean_of_batch(losses, None if whole is None else whole.positives)

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of the filtered ranks of held-out triples, with either end replaced by every entity."""
        wanted = {name: self.items_of_split(name) for name in splits}
        wanted = {name: some for name, some in wanted.items() if some.total}
        if not wanted:
            return {}
        rows = self._all_rows(inference, progress)
        return {name: self._scores(inference, rows, some) for name, some in wanted.items()}

    def items_of_split(self, split: str) -> Triples:
        """The held-out triples of a split, by entity number."""
        return held_out_triples(self._graph, self.relations, self.entities, split)

    def items_of(self, split: str) -> Array:
        """The held-out triples [m, 3] of a split: heads and tails by entity number, relations by theirs."""
        found = self.items_of_split(split)
        if not found.total:
            raise PenstockError(f"There is no split {split!r} of held-out triples.", code="split-missing")
        return np.stack(found, 1)

    def ranks(self, inference: Inference, triples: Triples, progress: Progress = SILENT) -> Array:
        """Filtered ranks [m, 2] of triples: with the tail replaced, and with the head replaced."""
        return self._ranks(inference, self._all_rows(inference, progress), triples)

    def score_triples(self, inference: Inference, triples: Triples, progress: Progress = SILENT) -> Array:
        """The scores of some triples."""
        rows = self._all_rows(inference, progress)
        scores = torch.empty(triples.total)
        head, relation, tail = (torch.from_numpy(each).to(rows.device) for each in triples)
        with torch.no_grad():
            for some in pair_blocks(triples.total, self.out):
                query = self.scorer.query(rows[head[some]], relation[some], "destination")
                scores[some] = self.scorer.match(query, rows[tail[some]]).float().cpu()
        return np.asarray(scores.numpy())

    @property
    def scorer(self) -> RelationScorer:
        """The head, which computes scores from rows."""
        return cast(RelationScorer, self.head)

    def _build_scorer(self) -> torch.nn.Module:
        job = self._job
        name = chosen_scorer(job.scorer, self.facts.about)
        if not issubclass(SCORERS[name], RelationScorer):
            fit = [each for each, scorer in SCORERS.items() if issubclass(scorer, RelationScorer)]
            raise PenstockError(
                f"Scorer {name} knows no relations: set `scorer` to one of {', '.join(fit)}.",
                code="unsupported-combination",
            )
        settings = ScorerSettings(job.inverse_relations, job.margin, job.distance, job.embedding_init)
        return build_scorer(name, self.out, len(self.relations), settings)

    def _links(self, planned: Planned) -> TripleBatch:
        links = self.batcher.batch(planned.seeds, planned.key)
        return links if self._share is None else self.batcher.share(links, self._share(links))

    def _joined(self, out: Rows, near: torch.Tensor) -> torch.Tensor:
        """The model's rows of a batch's entities, concatenated over types."""
        if isinstance(out, torch.Tensor):
            return out
        found = [out[name] for name in self.entities.types if name in out]
        return torch.cat(found) if found else torch.zeros(0, self.out, device=near.device, requires_grad=True)

    def _against(self, queries: torch.Tensor, rows: torch.Tensor, drawn: dict[str, Any], group: int) -> torch.Tensor:
        """Scores [triples, k] of queries with the entities drawn for each group of them; minus
        infinity does not count.
        """
        groups, k = drawn["rows"].shape if "rows" in drawn else (1, len(rows))
        missing = groups * group - len(queries)
        if missing:
            queries = torch.nn.functional.pad(queries, (0, 0, 0, missing))
        # Every entity is a row of the batch then; gathering them would copy the whole table.
        candidates = rows[drawn["rows"].view(-1)].view(groups, k, -1) if "rows" in drawn else rows[None]
        scores = self.scorer.compare(queries.view(groups, group, -1), candidates).view(-1, k)
        scores = scores[: len(scores) - missing]
        if not len(drawn["masked"]):
            return scores
        return scores.reshape(-1).index_fill(0, drawn["masked"], float("-inf")).view(-1, k)

    def _all_rows(self, inference: Inference, progress: Progress) -> torch.Tensor:
        wanted = {name: np.arange(self._graph.nodes[name].count) for name in self.entities.types}
        out = inference.outputs(wanted, progress)
        return torch.cat([out[name].float() for name in self.entities.types])

    def _scores(self, inference: Inference, rows: torch.Tensor, triples: Triples) -> dict[str, float]:
        found = self._ranks(inference, rows, triples).ravel()
        return {metric.name: metric.compute(found, None) for metric in self._metrics}

    def _ranks(self, inference: Inference, rows: torch.Tensor, triples: Triples) -> Array:
        def score(kept: Array, relation: Array, end: End, low: int, high: int) -> torch.Tensor:
            near = rows[torch.from_numpy(kept).to(rows.device)]
            queries = self.scorer.query(near, torch.from_numpy(relation).to(rows.device), end)
            return self.scorer.compare(queries, rows[low:high])

        def some_ranks(some: slice) -> Array:
            chosen, known = triples.at(some), self._known_triples()
            with torch.no_grad():
                return np.stack([filtered_ranks(score, chosen, end, self.entities, known) for end in _BOTH], 1)

        return inference.in_parts(triples.total, some_ranks)

    def _known_triples(self) -> KnownTriples:
        """The triples of all splits, sorted when they are first needed."""
        if self._all is None:
            every = [self.items_of_split(split) for split in SPLITS]
            self._all = KnownTriples(Triples.joined([self.batcher.triples, *every]), self.entities.count)
        return self._all


def _bare(links: TripleBatch) -> MiniBatch:
    """A batch of triples without neighbourhoods."""
    return MiniBatch(links.nodes, links.nodes, [], links=links)


def _frequency_weights(known: KnownTriples, triples: Triples) -> Array:
    """Weights as in RotatE (Sun et al., 2019): 1 / sqrt of how many triples have the same head, and the same
    tail, where both counts begin at 3.
    """
    return np.asarray(1 / np.sqrt(known.occurrences(triples) + 6.0))


# Refuses knowledge-graph jobs with fields that would be ignored, and runs on graphs with other relations.


def check_triple_job(job: Job) -> None:
    """Refuse fields that have no meaning for this task."""
    if job.time is not None:
        raise PenstockError(
            f"Knowledge graph completion does not go by time: leave out `time` ({job.time!r}), or set task to"
            " link-prediction and name a relation with `target`.",
            code="unsupported-combination",
        )
    if job.target is not None:
        raise PenstockError(
            "Knowledge graph completion is over all relations: leave out `target`, or set task to link-prediction.",
            code="conflicting-options",
        )
    if (job.regulariser == "none") != (job.regularisation == 0):
        raise PenstockError(
            f"regulariser is {job.regulariser} and regularisation {job.regularisation:g}: set both, or neither.",
            code="conflicting-options",
        )
    if job.adversarial and job.link_loss == "softmax":
        raise PenstockError(
            "loss softmax weighs negatives by itself: leave out `adversarial`, or choose bce or margin.",
            code="conflicting-options",
        )


def check_relations(relations: Sequence[EdgeType], learned: LearnedLabels | None) -> None:
    """Refuse a graph whose relations differ from those that the run's vectors were learned for."""
    words = None if learned is None else learned.words
    if words is not None and words != [relation for _, relation, _ in relations]:
        raise PenstockError(
            f"The run learned {len(words)} relations, and the graph's are others ({len(relations)}): use the graph of"
            " the run, or one with the same relations.",
            code="mismatched-inputs",
        )


def make_triple_task(
    name: TaskName, graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    """Triples of all relations, and the graph without those that are held out."""
    check_triple_job(job)
    if split not in ("train", ALL):
        raise PenstockError(
            f"Batches of triples are of those that are learned from: leave out split {split!r}.",
            code="unsupported-combination",
        )
    relations = relations_of(graph.edges)
    held_out = (pairs for kind in relations for pairs in graph.edges[kind].held_out.values())
    if any(job.held_out) and not any(map(len, held_out)):
        val, test = job.held_out
        for kind in relations:
            if graph.edges[kind].count:
                graph = split_edges(graph, kind, (val, test), job.split_number)
    check_relations(relations, learned)
    count = sum(graph.edges[kind].count for kind in relations)
    training = np.arange(count, dtype=index_dtype(count))
    return TripleTask(graph, make_batch_source(job, graph, training, excluding=True), job, functions=functions), graph


# Losses of true triples against their negatives, and the regularisers of embeddings. Each loss takes the scores of the
# true triples [m] and of their negatives [m, k], where minus infinity does not count, and returns one number for each
# triple.

TripleLoss = Callable[[Tensor, Tensor, TripleOptions], Tensor]

_POWERS = {"none": 0, "l2": 2, "n3": 3}


def _logistic(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """Half for the true triple, half for the weighted mean of its negatives, as in RotatE (Sun et al., 2019)."""
    return (functional.softplus(-true) + (_weights(false, options) * functional.softplus(false)).sum(1)) / 2


def _cross_entropy(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """Cross-entropy of the true triple among itself and its negatives."""
    return functional.softplus(false.logsumexp(1) - true)


def _margin(true: Tensor, false: Tensor, options: TripleOptions) -> Tensor:
    """The mean amount by which each negative's score comes closer to the true triple's than `margin`."""
    return (_weights(false, options) * functional.relu(options.margin - true[:, None] + false)).sum(1)


TRIPLE_LOSSES: dict[str, TripleLoss] = {"bce": _logistic, "softmax": _cross_entropy, "margin": _margin}
"""By value of the job field `loss`."""


class TripleRows(NamedTuple):
    """The rows of some triples' ends, of which one is replaced, and their relations' numbers."""

    kept: Tensor
    own: Tensor
    relation: Tensor
    end: End
    """The end that is replaced."""


def loss_by_triple(
    scorer: RelationScorer,
    options: TripleOptions,
    link_loss: str,
    rows: TripleRows,
    against: Callable[[Tensor], Tensor],
    own_column: Tensor | None = None,
) -> Tensor:
    """The loss of each triple with one end replaced; `against` computes the scores of queries with their negatives.

    With `own_column`, the negatives include each triple's own end, in that column. Cross-entropy then needs no other
    score of it, and the other losses leave it out.
    """
    queries = scorer.query(rows.kept, rows.relation, rows.end)
    scores = against(queries)
    if own_column is not None and link_loss == "softmax":
        return functional.cross_entropy(scores, own_column, reduction="none")
    if own_column is not None:
        scores = scores.scatter(1, own_column[:, None], -torch.inf)
    return TRIPLE_LOSSES[link_loss](scorer.match(queries, rows.own), scores, options)


def _weights(false: Tensor, options: TripleOptions) -> Tensor:
    """The weight of each negative: equal, or larger for hard ones (Sun et al., 2019). It has no gradient."""
    with torch.no_grad():
        if options.adversarial:
            return (options.adversarial * false).softmax(1).nan_to_num(0.0)
        counts = torch.isfinite(false)
        return counts / counts.sum(1, keepdim=True).clamp(min=1)


def penalty_by_triple(
    scorer: RelationScorer, options: TripleOptions, head: Tensor, tail: Tensor, relation: Tensor, ends: Sequence[End]
) -> Tensor | float:
    """For each triple, the sum of powers of the absolute values in its rows, times its weight in the loss.

    Where both ends are replaced and relations have a vector for each, it is the mean over both. Rows are processed
    together, since each operation costs a launch on a device.
    """
    if not options.regularisation:
        return 0.0
    vectors = [scorer.relation_rows(relation, end)[0] for end in ends]
    power, size = _POWERS[options.regulariser], len(head)

    def summed(rows: Sequence[Tensor]) -> Tensor:
        return scorer.magnitudes(torch.cat(list(rows))).pow(power).sum(-1).view(len(rows), size).sum(0)

    return options.regularisation * (summed([head, tail]) + summed(vectors) / len(ends))
