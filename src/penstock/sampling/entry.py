"""What a sampler's entry declares: how it is built and what it supports; and the job's fields for samplers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, Self

from pydantic import BeforeValidator, Field

from penstock.errors import PenstockError
from penstock.graph.documents import AutoCount, StrictDocument, split_commas

if TYPE_CHECKING:
    from penstock.graph.arrays import Array
    from penstock.graph.schema import EdgeType
    from penstock.sampling.block import BatchKey
    from penstock.sampling.device.program import DeviceProgram
    from penstock.sampling.explanation import SamplingExplanation
    from penstock.sampling.homogeneous import Homogeneous
    from penstock.sampling.links.edge_split import HeldOutRule
    from penstock.sampling.lists import ListSource, Readable
    from penstock.sampling.temporal import Clock


# How a sampler is built, what an epoch of it goes through, and what it supports.
#
# A new sampler is a `SamplerEntry` in its module and one line in `sampler_table.SAMPLERS`. It then runs on one
# machine and on clusters, and what it does not support is refused from its entry, in one place (`check_supported`).

FEATURES = {
    "types": "graphs with several node or edge types",
    "weight": "drawing by edge weights",
    "edge_weight": "weighing messages by edge weights",
    "time": "drawing by time",
    "replace": "drawing with replacement",
    "exclude": "leaving out edges, which tasks on edges need",
    "disjoint": "neighbourhoods that seeds do not share",
}
"""What a sampler may declare that it supports."""


class ReadableLists(NamedTuple):
    """Neighbour lists to draw from, and the clocks that draws from some relations obey."""

    readable: "Readable"
    clocks: "Mapping[EdgeType, Clock]"

    @property
    def clock(self) -> "Clock | None":
        """The clock of a graph with one relation."""
        return next(iter(self.clocks.values()), None)


class Locality(Protocol):
    """What is local to the process that draws, and explanations with scores of the rest."""

    def explanation(self, key: "BatchKey") -> "SamplingExplanation | None":
        """The explanation that applies to a batch; None where it is drawn without one. Waits for one that is being
        made.
        """

    def lists(self, explanation: "SamplingExplanation") -> "Mapping[EdgeType, ListSource]":
        """Lists by relation that draw according to an explanation."""


class GraphSource(Protocol):
    """A graph that a sampler is built over: in this process, or partitioned with owners in other processes."""

    def lists(self, options: "DrawOptions", *, shared: bool = False) -> ReadableLists:
        """Lists to draw from by the options' `weight` or `edge_weight`, `time` and `replace`.

        With `shared`, all rows of a hop see the same random number of a source vertex, as LABOR needs.
        """

    def whole_lists(self, sampler: str) -> "Homogeneous":
        """The graph for samplers that read whole lists; an error naming `sampler` where it has several types."""

    def training_vertices(self) -> "Array":
        """Training vertices in the numbers of this source, ascending by original number."""

    def clusters(self, options: "DrawOptions") -> "Array":
        """The cluster number of each vertex, for Cluster-GCN."""

    def locality(self, options: "DrawOptions") -> Locality:
        """What is local and what is remote; an error where the whole graph is in this process."""

    def without(self, absent: "Mapping[EdgeType, HeldOutRule]") -> Self:
        """The same source without the edges that are held out of some relations."""


class SamplerSettings(NamedTuple):
    """What a sampler is built with, beside the graph."""

    options: "DrawOptions"
    layers: int
    seed: int
    totals: bool
    """Whether the model needs the number of edges of each whole list."""
    edges: bool = False
    """Whether blocks must hold the positions of their edges, whose rows are then read."""
    ages: bool = False
    """Whether blocks must hold how long before its seed's time each edge was."""
    disjoint: bool = False
    """Whether every seed has a neighbourhood of its own, even if it shares vertices with others."""


@dataclass(frozen=True)
class SamplerFacts:
    """What a job must know of a sampler before any kernel is imported."""

    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of job fields that count something else for it."""
    seeds_only: bool = False
    """Whether a batch is its seeds: the sampler of models without layers."""


LAYER_SIZES = SamplerFacts({"fanouts": [2048, 2048, 2048]})
SUBGRAPH_SIZE = SamplerFacts({"batch_size": 4000})
CLUSTERS_PER_BATCH = SamplerFacts({"batch_size": 4})
SEEDS_ALONE = SamplerFacts(seeds_only=True)


@dataclass(frozen=True)
class SamplerEntry:
    """One sampler. `build` returns an object with `sample(seeds or items, key, ...)`."""

    name: str
    build: Callable[[GraphSource, SamplerSettings], Any]
    supports: frozenset[str] = frozenset()
    """Some of `FEATURES`."""
    facts: SamplerFacts = SamplerFacts()
    """Those of Penstock's own samplers are in `sampler_table` too, which imports none of them."""
    per_layer: str | None = None
    """The option that holds one number for each layer of the model; None: the number of layers is free."""
    joint: bool = False
    """Whether a batch is drawn as a whole, so that each of several workers draws all of it and keeps its share."""
    items_per_batch: Callable[["DrawOptions"], int] | None = None
    """For samplers that find their own seeds and have `items` (subgraphs, clusters): how many items make a batch. None:
    an epoch consists of the training vertices, `batch_size` at a time.
    """
    batches_per_epoch: Callable[["DrawOptions"], int] | None = None
    """For samplers that divide the training vertices into a number of batches, whatever `batch_size` is."""
    shuffles: bool = True
    """Whether batches are made by shuffling an epoch's items. Otherwise only `shuffle: always` is accepted."""
    supervision_apart: bool = False
    """Whether tasks on edges divide the training edges once into supervised ones and ones that carry messages (job
    field `supervision`). Otherwise every batch leaves out its own edges."""
    own_options: "type[StrictDocument] | None" = None
    """Job fields that belong to this sampler only: with any other they are refused."""
    local: bool = False
    """Whether draws depend on which machine has which parts (`GraphSource.locality`)."""
    settled: Mapping[str, Any] = field(default_factory=dict)
    """Job fields with which its first iterations cost as much as later ones do; profiles are measured with them."""
    makes_batches: bool = True
    """Whether it draws batches for steps. Otherwise steps read the whole graph, and keep what they read."""
    prepares: bool = True
    """Whether it prepares for whole epochs, and so is not used for trying a model."""
    measured: bool = False
    """Whether the cost model's operator `sample` is measured with it."""
    scales: bool = False
    """Whether each worker draws from its own seeds alone, so that its reads at other batch sizes can be predicted."""
    has_explained_form: bool = False
    """Whether sampler `explained` has a form that draws as this one does, except for what explanations change."""
    device: 'Callable[["DrawOptions", Any], DeviceProgram] | None' = None
    """`device(options, sampler)`: what a GPU does to draw the batches of the host's sampler. None: it cannot."""
    device_edges: float = math.inf
    """The most edges of a graph whose batches a device draws without being asked to (`sample_on: device`), where that
    needs memory of the host for each of them.
    """
    is_redefined: "Callable[[DrawOptions], bool]" = lambda options: False
    """Whether its draws are other ones since version 3 of draws: jobs of versions before are refused."""
    device_types: bool = False
    """Whether a GPU draws batches of several types as well, by uniform draws along each relation."""
    uses_clusters: bool = False
    """Whether it needs `GraphSource.clusters`, which the first worker of a cluster computes for all."""


def rule(name: str) -> Callable[[], Any]:
    """A rule of `triton_rules` for a program: it is imported when it is launched, as Triton may not be installed."""

    def load() -> Any:
        from penstock.sampling import triton_rules

        return getattr(triton_rules, name)

    return load


def check_supported(entry: SamplerEntry, wanted: Mapping[str, str]) -> None:
    """Refuse what a sampler does not support. `wanted` maps features of `FEATURES` to what the user can do instead."""
    for feature, remedy in wanted.items():
        if feature not in entry.supports:
            raise PenstockError(
                f"Sampler {entry.name} does not support {FEATURES[feature]}: {remedy}.", code="unsupported-combination"
            )


def plain_fanouts(options: "DrawOptions") -> list[int]:
    """The fan-outs of a graph with one relation, which are one number for each hop."""
    return fanouts_of_one(options.fanouts)


def fanouts_of_one(fanouts: Sequence[object]) -> list[int]:
    """The numbers of fan-outs that name no relation; an error where some do."""
    plain = [fanout for fanout in fanouts if isinstance(fanout, int)]
    if len(plain) < len(fanouts):
        raise PenstockError(
            "fanouts by relation are for graphs with several relations: give one number for each hop.",
            code="unsupported-combination",
        )
    return plain


# The sampler's part of a job.


def _number_or_folder(value: object) -> object:
    """Convert a number that the command line gives as text."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, int) and number < 2:
        raise ValueError("clusters must be 2 or more, or a partition folder")
    return number


class LaborOptions(StrictDocument):
    """What only sampler labor has."""

    shared_draws: int = Field(
        1,
        ge=1,
        description="labor: neighbouring batches of an epoch that draw by the same random numbers, and so read many of"
        " the same rows",
    )


class DrawOptions(LaborOptions):
    """How the neighbourhoods of a batch are sampled. `sampler_table.SamplerOptions` adds the names of samplers."""

    @property
    def list_weight(self) -> str | None:
        """The field that lists are weighted by, whether it decides draws or only scales messages."""
        return self.edge_weight if self.weight is None else self.weight

    @property
    def largest_fanout(self) -> int:
        """The largest fan-out of any hop and relation; -1: all are whole lists."""
        return max(number for hop in self.fanouts for number in ([hop] if isinstance(hop, int) else hop.values()))

    sampler: str = Field("neighbour", description="how neighbourhoods are drawn (docs/sampling.md)")
    fanouts: Annotated[list[int | dict[str, int]], BeforeValidator(split_commas)] = Field(
        [15, 10, 5],
        description="neighbours drawn for each vertex at each hop, from the seeds on; -1: all; a mapping: by relation;"
        " fastgcn, ladies: vertices of each layer (2048)",
    )
    replace: bool = Field(False, description="draw neighbours with repetition")
    weight: str | None = Field(None, description="edge field with weights: draw in proportion to it")
    edge_weight: str | None = Field(
        None,
        description="edge field with weights: neighbours are drawn uniformly, and the model weighs what they send by it"
        " (a module of your own gets it as `edge_weight`); auto: the graph's only such field (docs/models.md)",
    )
    time: str | None = Field(None, description="field with times: draw nothing later than the seed (docs/sampling.md)")
    seed_time: str | None = Field(
        None, description="field with the time of each vertex or edge that is learned; by default the one of `time`"
    )
    batch_size: int = Field(
        1024,
        ge=1,
        description="seeds in a batch; saint: vertices, edges or roots (4000); cluster: parts (4)",
    )
    walk_length: int = Field(2, ge=1, description="saint-walk: steps of every walk")
    clusters: Annotated[int | str, BeforeValidator(_number_or_folder)] = Field(
        100, description="cluster: parts to cut the graph into, or a partition folder whose parts are the clusters"
    )
    steps_per_epoch: int = Field(1, ge=1, description="whole: steps that an epoch's training vertices are divided into")


# The job's fields for sampler explained.


class ExplainedSamplingOptions(StrictDocument):
    """How explanations choose what is sent between machines. Other samplers refuse these fields."""

    explain_every: AutoCount = Field(
        30,
        description="explained: steps between two explanations of the model; auto: 30, and more where explaining would"
        " take more than 3 % of a worker's processor time by arithmetic (docs/sampling.md)",
    )
    remote_bias: float = Field(
        0.1,
        ge=0,
        le=1,
        description="explained: share of a vertex's draws that are moved from remote neighbours to local ones",
    )
    feature_share: float = Field(
        0.85, gt=0, le=1, description="explained: share of the columns that remote rows are sent with"
    )


class ExplainInternals(StrictDocument):
    """How a run with sampler explained makes its explanations: when, with how many steps, of how many rows."""

    explain_delay: int = Field(10, ge=0, description="steps from taking an explanation's weights until it is in force")
    explain_steps: int = Field(50, ge=1, description="steps that masks are optimised for at most")
    explain_loss: float = Field(
        0.01,
        ge=0,
        description="masks are found when ten steps change their loss by less than this share of the first;"
        " 0: only after all steps",
    )
    explain_rows: int = Field(256, ge=1, description="remote rows that one explanation reads at most")
