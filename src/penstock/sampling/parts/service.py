"""Serves draws to others: the handlers of a task that holds parts.

They send no requests themselves, so that tasks that ask each other never wait in a circle.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.sampling.parts.owner import OwnedPart, Seen
from penstock.sampling.parts.relation import answer_relation_request
from penstock.sampling.parts.requests import DrawRequest, StrictRequest, TotalsRequest, counts_as_sent, read_body
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

MOST_EDGES = 1 << 27
"""The most edges in one answer: 1 GiB of the widest numbers."""


def serve_lists(endpoint: Endpoint, parts: Mapping[int, OwnedPart]) -> None:
    """Answer "draw", "totals" and "lists" for some parts; and the requests of `relation`."""
    service = _Lists(endpoint.name, parts)
    for kind in ("degrees", "edges", "held-out"):
        endpoint.serve(kind, service.tell)
    endpoint.serve("draw", service.draw)
    endpoint.serve("totals", service.totals)
    endpoint.serve("lists", service.describe)


class _Lists:
    def __init__(self, name: str, parts: Mapping[int, OwnedPart]) -> None:
        self._name, self._parts = name, parts

    def draw(self, message: Message, sender: str) -> Message:
        """Answer with counts by row, sources, weights if any, and positions if asked for."""
        asked = read_body(message, DrawRequest)
        if asked.fanout == 0:
            raise PenstockError(
                "The fan-out is 0: ask for a positive number, or -1 for all neighbours.", code="value-out-of-range"
            )
        lists = self._part(asked.part).lists(asked.relation, asked.settings)
        vertices, excluded, seen = self._arrays(message, asked)
        lists.check(vertices, excluded, seen)
        _check_amount(lists.most(vertices, asked.fanout), vertices, asked)
        if asked.shared:
            _check_shared(asked, excluded)
            drawn = lists.draw_shared(vertices, np.uint64(asked.key), asked.fanout)
            # These draws take as many as the fan-out only on average.
            _check_amount(len(drawn.sources), vertices, asked)
        elif asked.whole:
            drawn = lists.whole(vertices, _whole_by(asked, excluded))
        else:
            drawn = lists.draw(vertices, np.uint64(asked.key), asked.fanout, excluded, seen, asked.positions)
        more = [] if drawn.weights is None else [drawn.weights]
        if asked.positions and drawn.positions is not None:
            more.append(drawn.positions.astype(index_dtype(lists.num_edges), copy=False))
        sources = drawn.sources.astype(index_dtype(lists.num_sources), copy=False)
        return Message("draw", {}, (counts_as_sent(np.diff(drawn.indptr)), sources, *more))

    def totals(self, message: Message, sender: str) -> Message:
        """Answer with one float32 for each vertex."""
        asked = read_body(message, TotalsRequest)
        lists = self._part(asked.part).lists(asked.relation, asked.settings)
        vertices, excluded, seen = self._arrays(message, asked)
        lists.check(vertices, excluded, seen)
        return Message("totals", {}, (lists.totals(vertices, excluded, seen),))

    def describe(self, message: Message, sender: str) -> Message:
        """Answer with what is held here: by part, the relations in stored order and the fields of their edges."""
        read_body(message, StrictRequest)
        return Message("lists", {"parts": {str(index): _description(part) for index, part in self._parts.items()}})

    def tell(self, message: Message, sender: str) -> Message:
        """Answer a request about a relation from the graph folder."""
        part = message.body.get("part")
        return answer_relation_request(self._part(part if isinstance(part, int) else -1), message)

    def _part(self, index: int) -> OwnedPart:
        if index not in self._parts:
            held = ", ".join(map(str, self._parts)) or "none"
            raise PenstockError(
                f"{self._name} does not hold part {index} (it holds: {held}): ask the task that holds it.",
                code="not-available",
            )
        return self._parts[index]

    def _arrays(self, message: Message, asked: TotalsRequest) -> tuple[Array, Array | None, Seen | None]:
        if len(message.arrays) not in ((1, 2) if asked.time is None else (3,)):
            raise PenstockError(
                f"A message of kind {message.kind!r} has {len(message.arrays)} arrays: send vertices.",
                code="malformed-message",
            )
        if asked.time is not None:
            vertices, trees, times = message.arrays
            return vertices, None, Seen(trees, times)
        return message.arrays[0], message.arrays[1] if len(message.arrays) == 2 else None, None


def _check_shared(asked: DrawRequest, excluded: Array | None) -> None:
    """Refuse options that shared draws would ignore."""
    unheard = [name for name in ("weight", "absent", "time", "replace") if getattr(asked, name)]
    unheard += [] if excluded is None else ["excluded edges"]
    if unheard:
        raise PenstockError(
            f"Layer-wise draws do not support {' and '.join(unheard)}: ask without.", code="unsupported-combination"
        )


def _whole_by(asked: DrawRequest, excluded: Array | None) -> str:
    """The field that whole lists are weighted by; refuses options that would be ignored."""
    if asked.weight is None or asked.fanout >= 0 or asked.absent or asked.time or excluded is not None:
        raise PenstockError(
            "Whole lists can only be requested with a field's weights and without excluded edges.",
            code="unsupported-combination",
        )
    return asked.weight


def _check_amount(edges: int, vertices: Array, asked: DrawRequest) -> None:
    if edges > MOST_EDGES:
        raise PenstockError(
            f"{len(vertices):,} vertices would draw up to {edges:,} edges of {asked.relation}, more than"
            f" {MOST_EDGES:,}: use smaller batches or fan-outs.",
            code="too-large",
        )


def _description(part: OwnedPart) -> list[dict[str, Any]]:
    return [{"type": list(kind), "fields": list(edges.fields)} for kind, edges in part.graph.edges.items()]
