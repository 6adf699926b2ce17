"""Sampler `explained`: draws fewer remote neighbours, chosen by scores of explanations of the model.

`draw_by_locality` is the kernel, with its mathematics; `draw_in_part` draws from one part, for other tasks too;
`ExplainedLists` draws from all parts, and `ExplainedSampler` is the sampler. `UnscoredLists` draws from a whole graph
before a run. `sampling.explanation` says what an explanation holds and how often the model is explained;
`penstock.cluster.worker.explained` makes explanations.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import EdgeSet
from penstock.graph.hashing import draw, unit
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.partition.owners import Book
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.entry import ExplainedSamplingOptions, GraphSource, Locality, SamplerEntry, SamplerSettings
from penstock.sampling.exclusion import NOTHING
from penstock.sampling.explanation import SamplingExplanation, Scores, check_scores
from penstock.sampling.lists import DrawnNeighbours, ListSource, Readers
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.remote import Channels, OwnedRows, PartAnswer, group_by_owner, stitch_draws
from penstock.sampling.parts.requests import (
    Bits,
    Name,
    RelationRequest,
    StrictRequest,
    Whole,
    counts_as_sent,
    counts_received,
    floats_received,
    numbers_received,
    read_body,
)
from penstock.sampling.parts.service import MOST_EDGES
from penstock.sampling.typed import NEIGHBOUR, TypedNeighbourSampler
from penstock.wire.channel import PendingCall, RemoteError
from penstock.wire.coflows import EXPLANATIONS, within_kind
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

# Draws of a vertex's neighbours, local and remote ones separately, with exact inclusion probabilities. Of a list of d
# neighbours n are remote, so their share is r = n / d. Of k = min(fan-out, d) draws max(k r - bias k, LEAST_REMOTE k r)
# are remote on average and the others local, as far as there are local neighbours.
#
# - Remote neighbours are drawn by Poisson sampling: u is taken where a uniform number of u's own is below its inclusion
# probability p_u = min(1, c score_u), and c is such that the probabilities add up to the expected number. The uniform
# number depends only on the batch, the hop and u, as in LABOR: the lists of a hop agree on which neighbours to take, so
# that fewer distinct rows are sent.
#
# - Local neighbours are drawn uniformly without replacement (conditional Poisson sampling with equal probabilities). A
# fractional number of draws is rounded up or down at random, with its fraction as the probability.
#
# Estimator: Horvitz and Thompson's. An edge's weight is one over its inclusion probability, so that the weighted sum
# over what was drawn is unbiased for the sum over the whole list, whatever the scores are; they only change its
# variance.

LEAST_REMOTE = 0.25
"""The least share of the remote neighbours of a uniform draw that is taken, whatever the bias."""
_ROUNDING = np.uint64(0xD1B54A32D192ED03)
_LOCAL = np.uint64(0x8CB92BA72F3D8DD7)
"""Separate random streams under a hop's key: for rounding, and for the choice among local neighbours."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(nogil=True, cache=True)
def expected_remote(fanout: int, remote: int, length: int, bias: float) -> float:
    """The expected number of draws among the `remote` ones of `length` neighbours; a negative fan-out means all
    neighbours.
    """
    if remote == 0:
        return 0.0
    wanted = length if fanout < 0 else min(fanout, length)
    uniform = wanted * remote / length
    return min(float(remote), max(uniform - bias * wanted, LEAST_REMOTE * uniform))


@njit(nogil=True, cache=True)
def inclusion_probabilities(scores: Array, expected: float, out: Array) -> None:
    """min(1, c score) of positive scores, with c such that they add up to `expected`, which is at most their number."""
    _fill_probabilities(scores, scores.shape[0], expected, out)


@njit(nogil=True, cache=True)
def _fill_probabilities(scores: Array, count: int, expected: float, out: Array) -> None:
    """`inclusion_probabilities` of the first `count` scores: a slice for every list would take longer than this."""
    if expected >= count:
        for k in range(count):
            out[k] = 1.0
        return
    total = most = 0.0
    for k in range(count):
        total += scores[k]
        most = max(most, scores[k])
    factor = expected / total if total > 0 else 0.0
    if most * factor < 1.0:
        # Most lists have no neighbour that is certain to be drawn.
        for k in range(count):
            out[k] = scores[k] * factor
        return
    for k in range(count):
        out[k] = -1.0
    certain = 0
    while True:
        total = 0.0
        for k in range(count):
            if out[k] < 0:
                total += scores[k]
        factor = (expected - certain) / total if total > 0 else 0.0
        more = 0
        for k in range(count):
            if out[k] < 0 and scores[k] * factor >= 1.0:
                out[k] = 1.0
                more += 1
        certain += more
        if more == 0:
            break
    for k in range(count):
        if out[k] < 0:
            out[k] = scores[k] * factor


@njit(nogil=True, cache=True, writes=())
def draw_by_locality(
    indptr: Array,
    indices: Array,
    list_names: Array,
    source_names: Array,
    home: Array,
    scored: Array,
    scores: Array,
    other_score: float,
    key: np.uint64,
    fanout: int,
    bias: float,
    readers: Array,
) -> tuple[Array, Array, Array]:
    """Draw in-neighbours of some vertices: offsets, positions in the lists, and float32 weights.

    Sources in one of the ranges [first, last) of `home` are local. The remote sources `scored`, ascending, have
    positive `scores`, all others have `other_score`. `list_names` are the original numbers of the lists' vertices, and
    `source_names` those of the sources; empty: the numbers themselves.
    """
    out_indptr = np.zeros(readers.shape[0] + 1, np.int64)
    longest = 0
    for row in range(readers.shape[0]):
        longest = max(longest, indptr[readers[row] + 1] - indptr[readers[row]])
    far, near = np.empty(longest, np.int64), np.empty(longest, np.int64)
    far_scores, chances = np.empty(longest, np.float64), np.empty(longest, np.float64)
    positions, weights = (
        np.empty(64 + 16 * readers.shape[0], np.int64),
        np.empty(64 + 16 * readers.shape[0], np.float32),
    )
    used, table = 0, _hashed(scored)
    for row in range(readers.shape[0]):
        v = readers[row]
        first, last = indptr[v], indptr[v + 1]
        remote = local = 0
        for k in range(first, last):
            u = indices[k]
            if _is_home(home, u):
                near[local] = k
                local += 1
            else:
                far[remote] = k
                place = table[_slot(table, scored, u)]
                far_scores[remote] = scores[place - 1] if place else other_score
                remote += 1
        if used + last - first > positions.shape[0]:
            positions, weights = _wider(positions, used + last - first), _wider(weights, used + last - first)
        expected = expected_remote(fanout, remote, last - first, bias)
        _fill_probabilities(far_scores, remote, expected, chances)
        for k in range(remote):
            # A certain neighbour needs no random number.
            if chances[k] >= 1.0 or unit(draw(key, np.uint64(_named(source_names, indices[far[k]])))) < chances[k]:
                positions[used] = far[k]
                weights[used] = 1.0 / chances[k]
                used += 1
        wanted = last - first if fanout < 0 else min(fanout, last - first)
        taken = min(float(local), wanted - expected)
        name = np.uint64(_named(list_names, v))
        needed = int(taken)
        if unit(draw(key ^ _ROUNDING, name)) < taken - needed:
            needed += 1
        own = draw(key ^ _LOCAL, name)
        for k in range(local):
            if needed == 0:
                break
            # Each remaining neighbour is equally likely to be among those still needed; if as many are needed as
            # remain, all are.
            if needed == local - k or unit(draw(own, np.uint64(near[k] - first))) * (local - k) < needed:
                positions[used] = near[k]
                weights[used] = local / taken
                used += 1
                needed -= 1
        out_indptr[row + 1] = used
    return out_indptr, positions[:used].copy(), weights[:used].copy()


@njit(nogil=True, cache=True, inline="always")
def _is_home(home: Array, vertex: int) -> bool:
    found = False
    for k in range(home.shape[0]):
        found |= home[k, 0] <= vertex < home[k, 1]
    return found


@njit(nogil=True, cache=True, inline="always")
def _named(names: Array, vertex: int) -> int:
    return vertex if names.shape[0] == 0 else names[vertex]


@njit(nogil=True, cache=True, writes=())
def _hashed(scored: Array) -> Array:
    """A hash table from scored vertices to their positions plus one; 0: none."""
    size = 16
    while size < 4 * scored.shape[0]:
        size *= 2
    table = np.zeros(size, np.int32)
    for k in range(scored.shape[0]):
        table[_slot(table, scored, scored[k])] = k + 1
    return table


@njit(nogil=True, cache=True, inline="always")
def _slot(table: Array, scored: Array, vertex: int) -> np.uint64:
    """The slot that holds a vertex's position, or the empty one where it would be."""
    mask = np.uint64(table.shape[0] - 1)
    slot = (np.uint64(vertex) * _GOLDEN >> np.uint64(32)) & mask
    while table[slot] != 0 and scored[table[slot] - 1] != vertex:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def _wider(array: Array, needed: int) -> Array:
    wider = np.empty(2 * needed, array.dtype)
    for k in range(array.shape[0]):
        wider[k] = array[k]
    return wider


# Draws from the lists of one part for a reader to which some vertices are local, in this or another task. A task that
# holds parts keeps the newest scores that each reader has sent it. A request for draws only has their version; where
# that is unknown, as after a restart, the reader sends the scores and asks again.

DRAW, SCORES = "draw-explained", "scores"
_VERSIONS = 4
"""Versions of a reader's scores that are kept: batches in flight may still be drawn by an older one."""


class LocalityDraw(NamedTuple):
    """How one hop of a batch is drawn."""

    key: np.uint64
    fanout: int
    bias: float
    home: Array
    """Ranges [first, last) of the sources that are local to the reader."""


class ScoresMissing(PenstockError):  # noqa: N818
    """Raised where the reader's scores are unknown."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="not-available")


class ExplainedDrawRequest(RelationRequest):
    """Array: vertices of the part. The answer: how many sources each has, the sources and their weights."""

    key: Bits
    fanout: Annotated[int, Field(ge=-1, lt=1 << 31)]
    bias: Annotated[float, Field(ge=0, le=1)]
    home: Annotated[list[Annotated[list[Whole], Field(min_length=2, max_length=2)]], Field(max_length=1 << 16)]
    version: Whole


class ScoresRequest(StrictRequest):
    """Arrays: vertices, ascending, and their levels."""

    node_type: Name
    version: Whole
    other: Whole


def draw_in_part(part: OwnedPart, relation: str, vertices: Array, how: LocalityDraw, scores: Scores) -> DrawnNeighbours:
    """One hop's draws for vertices of a part, in the partitioned graph's numbers, with weights."""
    kind = part.kind_named(relation)
    edges = part.graph.edges[kind]
    names = part.names_of_lists(kind), part.names_of_sources(kind)
    rows = vertices.astype(np.int64) - part.graph.nodes[kind[2]].first
    indptr, positions, weights = draw_by_locality(
        edges.indptr,
        edges.indices,
        *names,
        how.home,
        scores.vertices,
        scores.values(),
        scores.other_value,
        how.key,
        how.fanout,
        how.bias,
        rows,
    )
    return DrawnNeighbours(indptr, edges.indices[positions], None, weights)


def serve_explained_draws(endpoint: Endpoint, parts: Mapping[int, OwnedPart]) -> None:
    """Answer "draw-explained" and "scores" for some parts."""
    service = _ExplainedDraws(endpoint.name, parts)
    endpoint.serve(DRAW, service.draw)
    endpoint.serve(SCORES, service.take_scores)


class _ExplainedDraws:
    def __init__(self, name: str, parts: Mapping[int, OwnedPart]) -> None:
        self._name, self._parts, self._lock = name, parts, threading.Lock()
        self._scores: dict[tuple[str, str], OrderedDict[int, Scores]] = {}
        """By (reader, node type), then by version."""

    def draw(self, message: Message, sender: str) -> Message:
        asked = read_body(message, ExplainedDrawRequest)
        if asked.part not in self._parts or len(message.arrays) != 1 or asked.fanout == 0:
            raise PenstockError(
                f"{self._name} cannot draw part {asked.part} with fan-out {asked.fanout} from {len(message.arrays)}"
                " arrays: ask the task that holds the part.",
                code="malformed-message",
            )
        part, (vertices,) = self._parts[asked.part], message.arrays
        lists = part.lists(asked.relation)
        lists.check(vertices)
        source_type = part.kind_named(asked.relation)[0]
        with self._lock:
            scores = self._scores.get((sender, source_type), OrderedDict()).get(asked.version)
        if scores is None:
            raise ScoresMissing(f"{self._name} does not have version {asked.version} of the scores of {sender}.")
        if lists.most(vertices, -1) > MOST_EDGES:
            raise PenstockError("The lists of so many vertices are too long: use smaller batches.", code="too-large")
        home = np.array(asked.home, np.int64).reshape(-1, 2)
        how = LocalityDraw(np.uint64(asked.key), asked.fanout, asked.bias, home)
        drawn = draw_in_part(part, asked.relation, vertices, how, scores)
        assert drawn.weights is not None
        sources = drawn.sources.astype(index_dtype(lists.num_sources), copy=False)
        return Message(DRAW, {}, (counts_as_sent(np.diff(drawn.indptr)), sources, drawn.weights))

    def take_scores(self, message: Message, sender: str) -> Message:
        """Keep a reader's scores; the oldest versions beyond a few are dropped."""
        asked = read_body(message, ScoresRequest)
        graph = next(iter(self._parts.values())).graph
        if asked.node_type not in graph.nodes or len(message.arrays) != 2:
            raise PenstockError(
                f"Scores need vertices of a node type of the graph, not of {asked.node_type!r}, and their levels.",
                code="malformed-message",
            )
        scores = Scores(*message.arrays, asked.other)
        check_scores(scores, graph.nodes[asked.node_type].total, sender)
        # Copied, as the message's memory is reused.
        kept = Scores(scores.vertices.copy(), scores.levels.copy(), scores.other)
        with self._lock:
            versions = self._scores.setdefault((sender, asked.node_type), OrderedDict())
            versions[asked.version] = kept
            versions.move_to_end(asked.version)
            while len(versions) > _VERSIONS:
                versions.popitem(last=False)
        return Message(SCORES)


# The lists of one relation of a partitioned graph, drawn by their owners according to an explanation.


@dataclass(frozen=True)
class ReachedParts:
    """A partitioned graph as a reader reaches it: `local` parts are in this process; `channels` leads to the others."""

    book: Book
    local: Mapping[int, OwnedPart]
    channels: Channels
    sent: Callable[[int], object] = id
    """Called with the bytes of scores that were sent."""

    def home(self, node_type: str) -> Array:
        """Ranges [first, last) of the local vertices, int64 of shape [parts, 2]."""
        ranges = [self.book.range(part, node_type) for part in sorted(self.local)]
        return np.array(ranges, np.int64).reshape(-1, 2)


class ExplainedLists:
    """Draws by the scores of one explanation; totals of whole lists come from the `plain` lists."""

    weighted = True

    def __init__(
        self, kind: EdgeType, parts: ReachedParts, plain: ListSource, explanation: SamplingExplanation, bias: float
    ) -> None:
        self._kind, self._parts, self._plain, self._bias = kind, parts, plain, bias
        self._version, self._scores = explanation.version, explanation.scores[kind[0]]
        self._home, self._bounds = parts.home(kind[0]), parts.book.bounds(kind[2])
        self._num_sources = parts.book.count(kind[0])

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Request draws from owners elsewhere; local lists are drawn when the result is waited for."""
        if edges or readers.exclusion is not NOTHING or len(readers.limits):
            raise PenstockError(
                "Draws by explanations give no edge numbers and leave out no edges: use sampler neighbour.",
                code="unsupported-combination",
            )
        how, groups = LocalityDraw(key, fanout, self._bias, self._home), group_by_owner(readers.vertices, self._bounds)
        asked = {part: self._ask(part, group, how) for part, group in groups.items() if part not in self._parts.local}
        return partial(self._drawn, len(readers.vertices), groups, asked, how)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """The lengths of whole lists."""
        return self._plain.start_totals(readers)

    def _ask(self, part: int, group: OwnedRows, how: LocalityDraw) -> PendingCall:
        body = ExplainedDrawRequest(
            part=part,
            relation=edge_key(self._kind),
            key=int(how.key),
            fanout=how.fanout,
            bias=how.bias,
            home=self._home.tolist(),
            version=self._version,
        )
        return self._parts.channels(part).start(Message(DRAW, body.model_dump(), (group.vertices,)))

    def _drawn(
        self, rows: int, groups: dict[int, OwnedRows], asked: dict[int, PendingCall], how: LocalityDraw
    ) -> DrawnNeighbours:
        pieces = {}
        for part, group in groups.items():
            if part in self._parts.local:
                owned, relation = self._parts.local[part], edge_key(self._kind)
                drawn = draw_in_part(owned, relation, group.vertices, how, self._scores)
                pieces[part] = PartAnswer(np.diff(drawn.indptr), drawn.sources, drawn.weights)
        told = set[str]()
        for part, pending in asked.items():
            answer = self._answer(part, groups[part], pending, how, told)
            pieces[part] = self._received(part, answer, len(groups[part].rows))
        return stitch_draws(groups, pieces, rows, index_dtype(self._num_sources), True)

    def _answer(self, part: int, group: OwnedRows, pending: PendingCall, how: LocalityDraw, told: set[str]) -> Message:
        """An owner's answer; one that lacks the scores is sent them first, unless they were sent just now (`told`)."""
        try:
            return pending.result()
        except RemoteError as error:
            if error.type != ScoresMissing.__name__:
                raise
        scores, channel = self._scores, self._parts.channels(part)
        if channel.peer in told:
            return self._ask(part, group, how).result()
        told.add(channel.peer)
        body = ScoresRequest(node_type=self._kind[0], version=self._version, other=scores.other).model_dump()
        with within_kind(EXPLANATIONS):
            channel.call(Message(SCORES, body, (scores.vertices, scores.levels)))
        self._parts.sent(scores.vertices.nbytes + scores.levels.nbytes)
        return self._ask(part, group, how).result()

    def _received(self, part: int, answer: Message, rows: int) -> PartAnswer:
        """An owner's answer, validated completely, since kernels rely on it."""
        who = f"The owner of part {part}"
        if len(answer.arrays) != 3 or answer.arrays[0].shape != (rows,):
            raise PenstockError(
                f"{who} answered with lists of other rows than those requested: check that it runs the same release.",
                code="malformed-message",
            )
        sources = numbers_received(answer.arrays[1], self._num_sources, index_dtype(self._num_sources), who)
        counts = counts_received(answer.arrays[0], len(sources), who)
        return PartAnswer(counts, sources, floats_received(answer.arrays[2], len(sources), who))


# The lists of a whole graph, drawn as sampler explained draws them for one reader before the first explanation: all
# remote vertices have the same score. With it the reads of such draws can be counted before a run.

_NO_VERTICES, _NO_SCORES = np.empty(0, np.int64), np.empty(0, np.float64)


class CutNumbers:
    """The numbers of a graph's vertices after partitioning: those of a part are consecutive."""

    def __init__(self, part_of: Array, parts: int) -> None:
        self.original: Array = np.argsort(part_of, kind="stable")
        self.new = np.empty(len(part_of), np.int64)
        self.new[self.original] = np.arange(len(part_of))
        self._first = np.concatenate([[0], np.cumsum(np.bincount(part_of, minlength=parts))])

    def home(self, part: int) -> Array:
        """The range [first, last) of a part's vertices, int64 of shape [1, 2]."""
        return np.asarray(self._first[None, part : part + 2], np.int64)


class UnscoredLists:
    """Draws for a reader to which the vertices of one part are local, from lists in the graph's own numbers."""

    weighted = True

    def __init__(self, edges: EdgeSet, numbers: CutNumbers, part: int, bias: float) -> None:
        self._edges, self._numbers, self._home, self._bias = edges, numbers, numbers.home(part), bias

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Start a draw; it runs when the result is waited for."""
        if edges or readers.exclusion is not NOTHING or len(readers.limits):
            raise PenstockError(
                "Draws by explanations give no edge numbers and leave out no edges: use sampler neighbour.",
                code="unsupported-combination",
            )
        return partial(self._drawn, readers.vertices, key, fanout)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """The lengths of whole lists."""
        return partial(self._lengths, readers.vertices, np.dtype(np.float32))

    def _lengths(self, vertices: Array, dtype: np.dtype[np.generic]) -> Array:
        lengths: Array = self._edges.indptr[1:][vertices] - self._edges.indptr[:-1][vertices]
        return lengths.astype(dtype)

    def _drawn(self, vertices: Array, key: np.uint64, fanout: int) -> DrawnNeighbours:
        lengths = self._lengths(vertices, np.dtype(np.int64))
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(indptr[-1]) + np.repeat(self._edges.indptr[:-1][vertices] - indptr[:-1], lengths)
        sources = self._edges.indices[places]
        drawn_indptr, positions, weights = draw_by_locality(
            indptr,
            self._numbers.new[sources],
            vertices.astype(np.int64),
            self._numbers.original,
            self._home,
            _NO_VERTICES,
            _NO_SCORES,
            1.0,
            key,
            fanout,
            self._bias,
            np.arange(len(vertices)),
        )
        return DrawnNeighbours(drawn_indptr, sources[positions], None, weights)


# The sampler `explained`: plain neighbour sampling until the first explanation, then draws by scores.


class ExplainedSampler:
    """Draws a batch by the explanation that applies to it; waits until that explanation is complete."""

    def __init__(self, plain: NeighbourSampler | TypedNeighbourSampler, locality: Locality) -> None:
        self._plain, self._locality = plain, locality
        self._newest: tuple[SamplingExplanation, NeighbourSampler | TypedNeighbourSampler] | None = None

    def sample(self, seeds: Any, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds; it holds its explanation, if there is one."""
        explanation = self._locality.explanation(key)
        if explanation is None:
            return self._plain.sample(seeds, key)
        batch = self._sampler_by(explanation).sample(seeds, key)
        batch.explanation = explanation
        return batch

    def _sampler_by(self, explanation: SamplingExplanation) -> NeighbourSampler | TypedNeighbourSampler:
        newest = self._newest
        if newest is None or newest[0] is not explanation:
            newest = explanation, self._plain.drawing_from(self._locality.lists(explanation))
            self._newest = newest
        return newest[1]


def _build(source: GraphSource, settings: SamplerSettings) -> ExplainedSampler:
    plain = cast(NeighbourSampler | TypedNeighbourSampler, NEIGHBOUR.build(source, settings))
    return ExplainedSampler(plain, source.locality(settings.options))


EXPLAINED = SamplerEntry(
    "explained",
    _build,
    frozenset({"types"}),
    per_layer="fanouts",
    own_options=ExplainedSamplingOptions,
    local=True,
    settled={"explain_every": 3, "explain_delay": 0},
)
