"""A sampler of a cut graph that is told with every batch which edges are held out of which relation.

A task that samples for others does not know what a worker's task holds out before it is asked.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import Block, MiniBatch, TypedBlock
from penstock.sampling.key import BatchKey
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.typed import TypedNeighbourSampler

Inner = NeighbourSampler | TypedNeighbourSampler


class HoldoutSampler:
    """Makes a sampler for what is held out, and keeps the newest. Any thread may ask."""

    def __init__(self, make: Callable[[Mapping[EdgeType, HeldOutRule]], Inner], edge_types: list[EdgeType]) -> None:
        self._make, self._kinds = make, {edge_key(kind): kind for kind in edge_types}
        self._lock = threading.Lock()
        self._newest: tuple[dict[str, HeldOutRule], Inner] = {}, make({})

    def lacking(self, absent: Mapping[str, HeldOutRule]) -> Inner:
        """The sampler without the edges that are held out, by relation's key."""
        for name in absent:
            if name not in self._kinds:
                raise PenstockError(
                    f"There is no relation {name!r} to hold edges out of: use one of {', '.join(self._kinds)}.",
                    code="unknown-name",
                )
        with self._lock:
            if self._newest[0] != absent:
                self._newest = dict(absent), self._make({self._kinds[name]: rule for name, rule in absent.items()})
            return self._newest[1]

    def sample(
        self, seeds: Any, key: BatchKey, *, absent: Mapping[EdgeType, HeldOutRule] | None = None, **more: Any
    ) -> MiniBatch[Block] | MiniBatch[TypedBlock]:
        """A batch, as the sampler that is made gives it."""
        return self.lacking({edge_key(kind): rule for kind, rule in (absent or {}).items()}).sample(seeds, key, **more)
