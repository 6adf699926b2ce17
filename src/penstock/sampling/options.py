"""The sampler's part of a job."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, or_plugin, split_commas
from penstock.sampling.sampler_table import PLUGINS, SAMPLERS

if TYPE_CHECKING:
    SamplerName = str
else:
    SamplerName = Annotated[Literal[tuple(SAMPLERS)], or_plugin(PLUGINS)]


class SamplerOptions(StrictDocument):
    """How the neighbourhoods of a batch are sampled."""

    @property
    def list_weight(self) -> str | None:
        """The field that lists are weighted by, whether draws go by it or not."""
        return self.edge_weight if self.weight is None else self.weight

    sampler: SamplerName = Field("neighbour", description="how neighbourhoods are drawn (docs/sampling.md)")
    fanouts: Annotated[list[int | dict[str, int]], BeforeValidator(split_commas)] = Field(
        [15, 10, 5],
        description="neighbours drawn for each vertex at each hop, from the seeds on; -1: all; a mapping: by relation",
    )
    replace: bool = Field(False, description="draw neighbours with repetition")
    weight: str | None = Field(None, description="edge field with weights: draw in proportion to it")
    edge_weight: str | None = Field(
        None,
        description="edge field with weights: neighbours are drawn uniformly, and the model weighs what they send by it"
        " (a module of your own gets it as `edge_weight`); auto: the only field that can be meant (docs/edges.md)",
    )
    time: str | None = Field(None, description="field with times: draw nothing later than the seed (docs/sampling.md)")
    seed_time: str | None = Field(
        None, description="field with the time of each vertex or edge that is learned; by default the one of `time`"
    )
    layer_sizes: Annotated[list[int], BeforeValidator(split_commas)] = Field(
        [2048, 2048, 2048], description="fastgcn, ladies: vertices drawn for each layer, from the seeds on"
    )
    saint_size: int = Field(4000, ge=1, description="saint: vertices, edges or roots drawn for each batch")
    walk_length: int = Field(2, ge=1, description="saint-walk: steps of every walk")
    clusters: int = Field(100, ge=2, description="cluster: parts to cut the graph into, if `partition` is not given")
    partition: str | None = Field(None, description="cluster: a partition folder whose parts are the clusters")
    steps_per_epoch: int = Field(1, ge=1, description="whole: steps that an epoch's training vertices are divided into")
    clusters_per_batch: int = Field(4, ge=1, description="cluster: parts joined in a batch")
