"""All training vertices with their whole neighbourhoods: nothing is drawn, and an epoch is one step, or a few.

Training with this sampler is executed layer by layer in bins (`train.whole`), which reads the graph's lists by itself.
What is built here draws a few neighbours of a few vertices, for a model to be tried on before training.
"""

from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.registry import GraphSource, SamplerEntry, SamplerSettings
from penstock.sampling.typed import NEIGHBOUR, TypedNeighbourSampler

_TRIED = 2
"""Neighbours of a vertex that a model is tried on: whole neighbourhoods may be the whole graph."""


def _build(source: GraphSource, settings: SamplerSettings) -> NeighbourSampler | TypedNeighbourSampler:
    few = settings.options.model_copy(update={"fanouts": [_TRIED] * settings.layers})
    sampler: NeighbourSampler | TypedNeighbourSampler = NEIGHBOUR.build(source, settings._replace(options=few))
    return sampler


WHOLE = SamplerEntry(
    "whole",
    _build,
    frozenset({"types", "weight", "edge_weight", "exclude"}),
    batches_per_epoch=lambda options: options.steps_per_epoch,
    shuffles=False,
    supervision_apart=True,
)
