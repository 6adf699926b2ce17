"""Batches of triples made on a device without the host: the same as on the host, negatives included.

Shapes never change, so that launches can be captured: the last batch of an epoch is padded with triples that do not
count. Entities are of one node type.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.sampling.block import Purpose
from penstock.sampling.device.epoch import batch_keys, shuffled
from penstock.sampling.links.known import End
from penstock.sampling.links.negatives import STEP, TRIES
from penstock.sampling.triples import KnownTriples, TripleNegatives, Triples

_DRAWN = 128
"""Entities that a program draws."""
_LISTED = 256
"""True entities that a program marks at a time."""


@dataclass(eq=False)
class DeviceTripleBatch:
    """Triples of a batch; `counts` says which are real. By end: `drawn` entities [groups, k], None where every entity
    is a negative of every triple; and `masked` [triples, k], which of them do not count, None where all do.
    """

    head: Tensor
    relation: Tensor
    tail: Tensor
    counts: Tensor
    drawn: dict[End, Tensor | None]
    masked: dict[End, Tensor | None]
    group: int
    positions: Tensor
    """Positions among all training triples."""

    def end(self, end: End) -> Tensor:
        """The entities at one end."""
        return self.head if end == "source" else self.tail


class DeviceTriples:
    """The training triples on a device, the current epoch, and its next batch.

    Where every entity is a negative, a triple's own end is not masked: the loss must count it once.
    """

    def __init__(
        self,
        triples: Triples,
        known: KnownTriples,
        entities: int,
        negatives: TripleNegatives,
        weights: Array | None,
        ends: Sequence[End],
        items: Array,
        batch_size: int,
        device: torch.device,
    ) -> None:
        """`items` are the positions of the triples of an epoch."""
        self._entities, self._negatives, self._ends, self._device = entities, negatives, tuple(ends), device
        self._size, self._count = batch_size, len(items)
        self.batches = -(-len(items) // batch_size)

        def there(values: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        self._triples = [there(column) for column in triples]
        self._items, self._names = there(items.astype(np.int64)), there(items.astype(np.int64))
        self._weights = there(np.zeros(1) if weights is None else weights)
        self._known, self._listed = dict[End, Tensor](), dict[End, tuple[Tensor, Tensor]]()
        for end in self._ends if negatives.filtered else ():
            keys, others = known.index(end)
            if negatives.k:
                self._known[end] = there(keys * entities + others)
            else:
                kept = triples.end("source" if end == "destination" else "destination")
                bounds = np.stack(known.bounds(triples.relation, kept, end), 1)
                self._listed[end] = there(bounds.astype(np.int64)), there(others)
        self.order = torch.zeros(self.batches * batch_size, dtype=torch.int64, device=device)
        self.keys = torch.zeros((self.batches, len(self._ends)), dtype=torch.int64, device=device)
        self._places = torch.arange(batch_size, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        """The number of the next batch."""

    def fill(self, seed: int, epoch: int, order_key: np.uint64, batch: int) -> None:
        """Prepare an epoch, to be drawn from one of its batches on."""
        order = shuffled(self._names, order_key)
        self.order[: self._count] = self._items[order]
        self.keys.copy_(
            torch.from_numpy(batch_keys(seed, epoch, self.batches, [Purpose(f"negatives/{end}") for end in self._ends]))
        )
        self.cursor.fill_(batch)

    def batch(self) -> DeviceTripleBatch:
        """The next batch, without waiting for the device."""
        size, number = self._size, self.cursor
        positions = self.order.view(-1, size).index_select(0, number)[0]
        total = (self._count - number * size).clamp(max=size)
        head, relation, tail = (column.index_select(0, positions) for column in self._triples)
        group = min(self._negatives.group or size, size)
        batch = DeviceTripleBatch(head, relation, tail, self._places < total, {}, {}, group, positions)
        keys = self.keys.index_select(0, number)[0]
        for place, end in enumerate(self._ends):
            other: End = "source" if end == "destination" else "destination"
            queries = (relation * self._entities + batch.end(other)) * self._entities
            if self._negatives.k:
                drawn = self._drawn(keys[place : place + 1], total, queries, batch.end(end), end, group)
                batch.drawn[end], batch.masked[end] = drawn, self._clashes(drawn, queries, batch.end(end), end, group)
            else:
                batch.drawn[end], batch.masked[end] = None, self._marked(positions, batch.end(end), end)
        return batch

    def _drawn(self, key: Tensor, total: Tensor, queries: Tensor, own: Tensor, end: End, group: int) -> Tensor:
        from penstock.sampling.device.kernels import draw_entities

        policy, known = self._negatives, self._known.get(end)
        drawn = torch.zeros((-(-self._size // group), policy.k), dtype=torch.int64, device=self._device)
        listed: Any = queries if known is None else known
        draw_entities[(len(drawn), -(-policy.k // _DRAWN))](
            key, total, queries, own, listed, len(listed), self._weights, self._entities, drawn, group, policy.k,
            FILTERED=known is not None, WEIGHTED=bool(policy.power), TRIES=TRIES, COUNTERS=int(STEP),
            DEPTH=max(len(listed), self._entities).bit_length() + 1, B=_DRAWN,
        )  # fmt: skip
        return drawn

    def _clashes(self, drawn: Tensor, queries: Tensor, own: Tensor, end: End, group: int) -> Tensor:
        """Which of the drawn entities are a triple's own end, or make a true triple."""
        each = drawn.repeat_interleave(group, 0)[: self._size] if group > 1 else drawn
        clashes = each == own[:, None]
        known = self._known.get(end)
        if known is None:
            return clashes
        sought = queries[:, None] + each
        places = torch.searchsorted(known, sought).clamp_(max=len(known) - 1)
        return clashes | (known[places] == sought)

    def _marked(self, positions: Tensor, own: Tensor, end: End) -> Tensor | None:
        """Which entities make a true triple, except its own end."""
        if end not in self._listed:
            return None
        from penstock.sampling.device.kernels import mark_listed

        bounds, others = self._listed[end]
        mask = torch.zeros((self._size, self._entities), dtype=torch.int8, device=self._device)
        mark_listed[(self._size,)](bounds.index_select(0, positions), others, mask, self._entities, B=_LISTED)
        return mask.scatter_(1, own[:, None], 0).view(torch.bool)
