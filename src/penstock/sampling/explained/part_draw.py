"""Draws from the lists of one part for a reader to which some vertices are local, here or for another task.

A task that holds parts keeps the newest scores that each reader has sent it. A request for draws names their version
only; where it is not known, as after a restart, the reader sends the scores and asks again.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.sampling.explained.locality_draw import draw_by_locality
from penstock.sampling.explanation import Scores, check_scores
from penstock.sampling.lists import DrawnNeighbours
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.requests import (
    Bits,
    Name,
    RelationRequest,
    StrictRequest,
    Whole,
    counts_as_sent,
    read_body,
)
from penstock.sampling.parts.service import MOST_EDGES
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

DRAW, SCORES = "draw-explained", "scores"
_VERSIONS = 4
"""Versions of a reader's scores that are kept: batches on their way may still be drawn by an older one."""


class LocalityDraw(NamedTuple):
    """How one hop of a batch is drawn."""

    key: np.uint64
    fanout: int
    bias: float
    home: Array
    """Ranges [first, last) of the sources that are local to the reader."""


class ScoresMissing(PenstockError):  # noqa: N818
    """The reader's scores are not known here."""

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
    """One hop's draws for vertices of a part, in the cut graph's numbers, with weights."""
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
        """By reader and node type, by version."""

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
        """Keep a reader's scores; the oldest of more than a few versions are forgotten."""
        asked = read_body(message, ScoresRequest)
        graph = next(iter(self._parts.values())).graph
        if asked.node_type not in graph.nodes or len(message.arrays) != 2:
            raise PenstockError(
                f"Scores need vertices of a node type of the graph, not of {asked.node_type!r}, and their levels.",
                code="malformed-message",
            )
        scores = Scores(*message.arrays, asked.other)
        check_scores(scores, graph.nodes[asked.node_type].total, sender)
        # The message's memory is used again.
        kept = Scores(scores.vertices.copy(), scores.levels.copy(), scores.other)
        with self._lock:
            versions = self._scores.setdefault((sender, asked.node_type), OrderedDict())
            versions[asked.version] = kept
            versions.move_to_end(asked.version)
            while len(versions) > _VERSIONS:
                versions.popitem(last=False)
        return Message(SCORES)
