"""Draws for others: the handlers of a task that holds parts.

They call nobody, so that tasks that ask each other never wait in a circle.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.schema import edge_key
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.requests import DrawRequest, Request, TotalsRequest, counts_as_sent, read_body
from penstock.wire.message import Message
from penstock.wire.post import Post

MOST_EDGES = 1 << 27
"""Edges in one answer: 1 GiB of the widest numbers."""


def serve_lists(post: Post, parts: Mapping[int, OwnedPart]) -> None:
    """Answer "draw", "totals" and "lists" for some parts."""
    service = _Lists(post.name, parts)
    post.serve("draw", service.draw)
    post.serve("totals", service.totals)
    post.serve("lists", service.describe)


class _Lists:
    def __init__(self, name: str, parts: Mapping[int, OwnedPart]) -> None:
        self._name, self._parts = name, parts

    def draw(self, message: Message, sender: str) -> Message:
        """Counts by row, sources, and weights where there are any."""
        asked = read_body(message, DrawRequest)
        if asked.fanout == 0:
            raise PenstockError("A fan-out of 0 draws nothing: ask for a positive number, or -1 for all.")
        lists = self._part(asked.part).lists(asked.relation, asked.replace, asked.weight)
        vertices, excluded = self._arrays(message)
        lists.check(vertices, excluded)
        most = lists.most(vertices, asked.fanout)
        if most > MOST_EDGES:
            raise PenstockError(
                f"{len(vertices):,} vertices draw up to {most:,} edges of {asked.relation}, over {MOST_EDGES:,}:"
                " use smaller batches or fan-outs."
            )
        drawn = lists.draw(vertices, np.uint64(asked.key), asked.fanout, excluded)
        weights = () if drawn.weights is None else (drawn.weights,)
        sources = drawn.sources.astype(index_dtype(lists.num_sources), copy=False)
        return Message("draw", {}, (counts_as_sent(np.diff(drawn.indptr)), sources, *weights))

    def totals(self, message: Message, sender: str) -> Message:
        """One float32 a vertex."""
        asked = read_body(message, TotalsRequest)
        lists = self._part(asked.part).lists(asked.relation, weight=asked.weight)
        vertices, excluded = self._arrays(message)
        lists.check(vertices, excluded)
        return Message("totals", {}, (lists.totals(vertices, excluded),))

    def describe(self, message: Message, sender: str) -> Message:
        """What is held here: by part, vertices by type and relations in stored order."""
        read_body(message, Request)
        return Message("lists", {"parts": {str(index): _description(part) for index, part in self._parts.items()}})

    def _part(self, index: int) -> OwnedPart:
        if index not in self._parts:
            held = ", ".join(map(str, self._parts)) or "none"
            raise PenstockError(f"{self._name} does not hold part {index} (it holds: {held}): ask who does.")
        return self._parts[index]

    def _arrays(self, message: Message) -> tuple[Array, Array | None]:
        if len(message.arrays) not in (1, 2):
            raise PenstockError(f"A message of kind {message.kind!r} has {len(message.arrays)} arrays: send vertices.")
        return message.arrays[0], message.arrays[1] if len(message.arrays) == 2 else None


def _description(part: OwnedPart) -> dict[str, Any]:
    nodes = {
        name: {"first": these.first, "count": these.count, "total": these.total}
        for name, these in part.graph.nodes.items()
    }
    relations = [
        {"type": list(kind), "key": edge_key(kind), "edges": edges.count, "fields": list(edges.fields)}
        for kind, edges in part.graph.edges.items()
    ]
    return {"nodes": nodes, "relations": relations}
