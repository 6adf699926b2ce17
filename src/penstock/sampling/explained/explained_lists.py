"""The lists of one relation of a cut graph, drawn by their owners as an explanation says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from penstock.coflow_context import EXPLANATIONS, within_kind
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.owners import Book
from penstock.sampling.explained.part_draw import (
    DRAW,
    SCORES,
    ExplainedDrawRequest,
    LocalityDraw,
    ScoresMissing,
    ScoresRequest,
    draw_in_part,
)
from penstock.sampling.explanation import Explanation
from penstock.sampling.lists import DrawnNeighbours, ListSource, Readers
from penstock.sampling.parts.answers import Group, PartAnswer, group_by_owner, stitch_draws
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.remote import Channels
from penstock.sampling.parts.requests import counts_received, floats_received, numbers_received
from penstock.wire.message import Message
from penstock.wire.pending_call import PendingCall, RemoteError


@dataclass(frozen=True)
class ReachedParts:
    """A cut graph as a reader reaches it: `local` parts are here, and are its home; `channels` leads to the others."""

    book: Book
    local: Mapping[int, OwnedPart]
    channels: Channels
    sent: Callable[[int], object] = id
    """Told the bytes of scores that were sent."""

    def home(self, node_type: str) -> Array:
        """Ranges [first, last) of the vertices that are here, int64 of shape [parts, 2]."""
        ranges = [self.book.range(part, node_type) for part in sorted(self.local)]
        return np.array(ranges, np.int64).reshape(-1, 2)


class ExplainedLists:
    """Draws by the scores of one explanation; whole lists are counted as the `plain` lists do."""

    weighted = True

    def __init__(
        self, kind: EdgeType, parts: ReachedParts, plain: ListSource, explanation: Explanation, bias: float
    ) -> None:
        self._kind, self._parts, self._plain, self._bias = kind, parts, plain, bias
        self._version, self._scores = explanation.version, explanation.scores[kind[0]]
        self._home, self._bounds = parts.home(kind[0]), parts.book.bounds(kind[2])
        self._num_sources = parts.book.count(kind[0])

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Ask the owners that are elsewhere; those here draw when the answer is waited for."""
        if edges or readers.exclusion or len(readers.limits):
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

    def _ask(self, part: int, group: Group, how: LocalityDraw) -> PendingCall:
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
        self, rows: int, groups: dict[int, Group], asked: dict[int, PendingCall], how: LocalityDraw
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

    def _answer(self, part: int, group: Group, pending: PendingCall, how: LocalityDraw, told: set[str]) -> Message:
        """An owner's answer; one that does not have the scores gets them first, unless it was `told` just now."""
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
        """An owner's answer. It goes to kernels that believe it, so nothing in it is believed here."""
        who = f"The owner of part {part}"
        if len(answer.arrays) != 3 or answer.arrays[0].shape != (rows,):
            raise PenstockError(
                f"{who} answered with lists of other rows than those requested: check that it runs the same release.",
                code="malformed-message",
            )
        sources = numbers_received(answer.arrays[1], self._num_sources, index_dtype(self._num_sources), who)
        counts = counts_received(answer.arrays[0], len(sources), who)
        return PartAnswer(counts, sources, floats_received(answer.arrays[2], len(sources), who))
