"""What differs between computing alone, on a device and among workers: whose chunks, and where rows are kept."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from penstock.graph.arrays import Array
from penstock.train.layerwise.chunks import Sampled
from penstock.train.layerwise.levels import Level


class LayerPlan(Protocol):
    """Which chunks are computed here, where the rows between two layers are kept, and what waits for others."""

    @property
    def by_layers(self) -> bool:
        """Whether a vertex has one value that all its readers share; not so where values depend on a seed's time."""

    def running(self) -> AbstractContextManager[None]:
        """Around everything that is computed for one request of outputs."""

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Before the first of `computed` layers, of a model that has `layers`; returns the vertices to compute here."""

    def first(self, node_type: str, ids: Array) -> Any:
        """The rows that the first layer reads of some vertices."""

    def chunks(self, number: int) -> Iterator[Sampled]:
        """This process's chunks of a layer, each with its vertices' whole lists."""

    def level(self, number: int) -> Level:
        """Where a layer's rows are kept."""

    def finish_layer(self, number: int) -> None:
        """All chunks of this process are written: return when every process's are."""

    def finish(self) -> None:
        """Release the layers' rows once no reader is left."""

    def ids(self, node_type: str, rows: Array) -> Array:
        """The numbers by which levels and inputs know some vertices."""

    def neighbourhoods(self, node_type: str, rows: Array, times: Array | None = None) -> Iterator[Sampled]:
        """Some vertices in chunks with their whole neighbourhoods over all hops.

        `times`: up to when each of them sees the graph, where that is not its own time.
        """

    def joined(self, count: int, compute: Callable[[slice], list[torch.Tensor]]) -> torch.Tensor:
        """What `compute` gives, in pieces, for `count` vertices: every process computes some, and has all."""

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """What `compute` gives for `count` items, one row each: every process computes some, and has all."""
