"""The samplers by name: how each is built, what an epoch of it goes through, and what it supports.

A new sampler is one file that defines a `SamplerEntry` and one line in `SAMPLERS` (`sampler_table`). It then runs on
one machine and on clusters, and what it does not support is refused from its entry, in one place (`check_supported`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from penstock.errors import PenstockError, nearest
from penstock.plugins import has_plugin, load_plugin
from penstock.sampling.sampler_table import PLUGINS, SAMPLERS

if TYPE_CHECKING:
    from penstock.graph.arrays import Array
    from penstock.graph.documents import StrictDocument
    from penstock.graph.schema import EdgeType
    from penstock.sampling.explanation import Explanation
    from penstock.sampling.homogeneous import Homogeneous
    from penstock.sampling.key import BatchKey
    from penstock.sampling.links.edge_split import HeldOutRule
    from penstock.sampling.lists import ListSource, Readable
    from penstock.sampling.options import SamplerOptions
    from penstock.sampling.temporal import Clock

FEATURES = {
    "types": "graphs with several node or edge types",
    "weight": "drawing by edge weights",
    "edge_weight": "weighing messages by edge weights",
    "time": "drawing by time",
    "replace": "drawing with replacement",
    "exclude": "leaving out edges, which tasks on edges need",
    "disjoint": "neighbourhoods that seeds do not share",
    "device": "drawing on a GPU",
}
"""What a sampler may declare that it supports."""


class ReadableLists(NamedTuple):
    """Neighbour lists to draw from, and the clocks that draws from relations obey, where they obey any."""

    readable: "Readable"
    clocks: "Mapping[EdgeType, Clock]"

    @property
    def clock(self) -> "Clock | None":
        """The clock of a graph with one relation."""
        return next(iter(self.clocks.values()), None)


class Locality(Protocol):
    """What is local to whoever draws, and explanations of how much the rest matters."""

    def explanation(self, key: "BatchKey") -> "Explanation | None":
        """What is in force for a batch, None where the batch is drawn plainly; waits for one that is under way."""

    def lists(self, explanation: "Explanation") -> "Mapping[EdgeType, ListSource]":
        """Lists by relation that are drawn from as an explanation says."""


class GraphSource(Protocol):
    """A graph that a sampler is built over: in this process, or cut into parts with owners in other processes."""

    @property
    def typed(self) -> bool:
        """Whether the graph has several node or edge types."""

    def lists(self, options: "SamplerOptions", *, shared: bool = False) -> ReadableLists:
        """Lists to draw from by the options' `weight` or `edge_weight`, `time` and `replace`.

        With `shared`, all rows of a hop see the same random number of a source vertex, as LABOR needs.
        """

    def whole_lists(self, sampler: str) -> "Homogeneous":
        """The graph for samplers that read whole lists; refused in the name of `sampler` where it has several types."""

    def training_vertices(self) -> "Array":
        """Training vertices in the numbers of this source, ascending by original number."""

    def clusters(self, options: "SamplerOptions") -> "Array":
        """The cluster number of each vertex, for Cluster-GCN."""

    def locality(self, options: "SamplerOptions") -> Locality:
        """What is local and what is remote; refused where all of the graph is in this process."""

    def without(self, absent: "Mapping[EdgeType, HeldOutRule]") -> Self:
        """The same source without the edges that are held out of some relations."""


class SamplerSettings(NamedTuple):
    """What a sampler is built for, beside the graph."""

    options: "SamplerOptions"
    layers: int
    seed: int
    totals: bool
    """Whether the model needs the number of edges of each whole list."""
    edges: bool = False
    """Whether blocks must name their edges, whose rows are then read."""
    ages: bool = False
    """Whether blocks must say how long before its seed's time each edge was."""
    disjoint: bool = False
    """Whether every seed has a neighbourhood of its own, whatever vertices it shares with others."""


@dataclass(frozen=True)
class SamplerEntry:
    """One sampler. `build` returns an object with `sample(seeds or items, key, ...)`."""

    name: str
    build: Callable[[GraphSource, SamplerSettings], Any]
    supports: frozenset[str] = frozenset()
    """Some of `FEATURES`."""
    per_layer: str | None = None
    """The option that holds one number for each layer of the model; None: the number of layers is free."""
    joint: bool = False
    """Whether a batch is drawn as a whole, so that each of several workers draws all of it and keeps its share."""
    items_per_batch: Callable[["SamplerOptions"], int] | None = None
    """For samplers that find their seeds themselves and have `items` (subgraphs, clusters): how many of these make
    a batch. None: an epoch goes through the training vertices, `batch_size` at a time."""
    batches_per_epoch: Callable[["SamplerOptions"], int] | None = None
    """For samplers that divide the training vertices into a number of batches, whatever `batch_size` is."""
    shuffles: bool = True
    """Whether the order of an epoch's items makes its batches. Otherwise only `shuffle: always` is accepted."""
    supervision_apart: bool = False
    """Whether tasks on edges divide the training edges once into supervised ones and ones that carry messages (job
    field `supervision`). Otherwise every batch leaves out its own edges."""
    own_options: "type[StrictDocument] | None" = None
    """Fields of the job that are for this sampler alone: with any other they are refused."""
    local: bool = False
    """Whether draws depend on which machine has which parts (`GraphSource.locality`)."""
    settled: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the job with which its first iterations cost what later ones do: a profile is measured with them."""
    uses_clusters: bool = False
    """Whether `GraphSource.clusters` is needed, which on a cluster the first worker computes for everyone."""


def sampler_entry(name: str) -> SamplerEntry:
    """The entry of a sampler, which may be a plug-in's."""
    if name not in SAMPLERS and has_plugin(PLUGINS, name):
        plugin: SamplerEntry = load_plugin(PLUGINS, name, SamplerEntry)
        return plugin
    if name not in SAMPLERS:
        raise PenstockError(f"No sampler is called {name!r}{nearest(name, SAMPLERS)}", code="unknown-name")
    module, _, attribute = SAMPLERS[name].partition(":")
    entry: SamplerEntry = getattr(import_module(module), attribute)
    return entry


def check_supported(entry: SamplerEntry, wanted: Mapping[str, str]) -> None:
    """Refuse what a sampler does not support. `wanted` maps features of `FEATURES` to what the user can do instead."""
    for feature, remedy in wanted.items():
        if feature not in entry.supports:
            raise PenstockError(
                f"Sampler {entry.name} does not support {FEATURES[feature]}: {remedy}.", code="unsupported-combination"
            )


def layer_count(options: "SamplerOptions", layers: int) -> int:
    """Layers of the model: those asked for (`layers`, 0: not said), or one for each fan-out or layer size."""
    field = sampler_entry(options.sampler).per_layer
    if field is None:
        return layers or 2
    numbers = getattr(options, field)
    if layers and len(numbers) != layers:
        raise PenstockError(
            f"layers is {layers}, and {field} has {len(numbers)} numbers ({numbers}): give one number for each layer.",
            code="shape-mismatch",
        )
    return len(numbers)


def plain_fanouts(options: "SamplerOptions") -> list[int]:
    """The fan-outs of a graph with one relation, which are one number for each hop."""
    fanouts = [fanout for fanout in options.fanouts if isinstance(fanout, int)]
    if len(fanouts) < len(options.fanouts):
        raise PenstockError(
            "fanouts by relation are for graphs with several relations: give one number for each hop.",
            code="unsupported-combination",
        )
    return fanouts
