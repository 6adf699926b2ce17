"""The samplers by name, which jobs choose from. A new one is a `SamplerEntry` in its module, and one line here; a
second one where it has `SamplerFacts` of its own.
"""

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import name_in
from penstock.registry import Registry
from penstock.sampling.entry import (
    CLUSTERS_PER_BATCH,
    LAYER_SIZES,
    SEEDS_ALONE,
    SUBGRAPH_SIZE,
    DrawOptions,
    SamplerEntry,
    SamplerFacts,
)

SAMPLERS: Registry[SamplerEntry] = Registry(
    "sampler",
    "penstock.samplers",
    {
        "neighbour": "penstock.sampling.typed:NEIGHBOUR",
        "labor": "penstock.sampling.labor:LABOR",
        "fastgcn": "penstock.sampling.layerwise:FASTGCN",
        "ladies": "penstock.sampling.layerwise:LADIES",
        "saint-vertex": "penstock.sampling.saint:SAINT_VERTEX",
        "saint-edge": "penstock.sampling.saint:SAINT_EDGE",
        "saint-walk": "penstock.sampling.saint:SAINT_WALK",
        "explained": "penstock.sampling.explained:EXPLAINED",
        "cluster": "penstock.sampling.cluster:CLUSTER",
        "whole": "penstock.sampling.undrawn:WHOLE",
        "seeds": "penstock.sampling.undrawn:SEEDS",
    },
    SamplerEntry,
)
DEFAULT_SAMPLER = "neighbour"
SEEDS_ONLY = "seeds"
"""The sampler of models without layers."""

_OWN_FACTS = {
    **dict.fromkeys(SAMPLERS, SamplerFacts()),
    **dict.fromkeys(("fastgcn", "ladies"), LAYER_SIZES),
    **dict.fromkeys(("saint-vertex", "saint-edge", "saint-walk"), SUBGRAPH_SIZE),
    "cluster": CLUSTERS_PER_BATCH,
    SEEDS_ONLY: SEEDS_ALONE,
}


def sampler_facts(sampler: str) -> SamplerFacts:
    """`SamplerEntry.facts` of a sampler; none of Penstock's own is imported for it."""
    return _OWN_FACTS[sampler] if sampler in _OWN_FACTS else SAMPLERS[sampler].facts


if TYPE_CHECKING:
    SamplerName = str
else:
    SamplerName = name_in(SAMPLERS)


class SamplerOptions(DrawOptions):
    """How the neighbourhoods of a batch are sampled."""

    sampler: SamplerName = Field(DEFAULT_SAMPLER, description=DrawOptions.model_fields["sampler"].description)

    @model_validator(mode="after")
    def _sizes_of_sampler(self) -> Self:
        """Replace sizes that were not given by the sampler's defaults."""
        for name, value in sampler_facts(self.sampler).sizes.items():
            if name not in self.model_fields_set:
                setattr(self, name, value)
        return self


def layer_count(options: SamplerOptions, layers: int) -> int:
    """The number of the model's layers: `layers`, or where that is 0 one for each fan-out or layer size."""
    field = SAMPLERS[options.sampler].per_layer
    if field is None:
        return layers or 2
    numbers = getattr(options, field)
    if layers and len(numbers) != layers:
        raise PenstockError(
            f"layers is {layers}, and {field} has {len(numbers)} numbers ({numbers}): give one number for each layer.",
            code="shape-mismatch",
        )
    return len(numbers)
