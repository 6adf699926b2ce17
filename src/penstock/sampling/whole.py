"""Whole neighbourhoods of all training vertices: nothing is drawn, and an epoch is one step, or a few.

Training with this sampler is executed layer by layer in bins (`train.whole`). What is built here gives the whole
neighbourhood of some vertices as one batch, for models that cannot be computed layer by layer.
"""

from penstock.sampling.neighbours import ALL, NeighbourSampler
from penstock.sampling.registry import GraphSource, SamplerEntry, SamplerSettings
from penstock.sampling.typed import NEIGHBOUR, TypedNeighbourSampler


def _build(source: GraphSource, settings: SamplerSettings) -> NeighbourSampler | TypedNeighbourSampler:
    whole = settings.options.model_copy(update={"fanouts": [ALL] * settings.layers})
    sampler: NeighbourSampler | TypedNeighbourSampler = NEIGHBOUR.build(source, settings._replace(options=whole))
    return sampler


WHOLE = SamplerEntry(
    "whole",
    _build,
    frozenset({"types", "weight", "exclude"}),
    batches_per_epoch=lambda options: options.steps_per_epoch,
)
