"""Samplers that draw nothing: `whole`, all neighbours of all training vertices, and `seeds`, seeds alone."""

from collections.abc import Mapping

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.entry import SEEDS_ALONE, GraphSource, SamplerEntry, SamplerSettings
from penstock.sampling.lists import Readable, check_typed_seeds
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.typed import NEIGHBOUR, TypedNeighbourSampler

# All training vertices with their whole neighbourhoods: nothing is drawn, and an epoch is one step, or a few. Training
# with this sampler is executed layer by layer in bins (`train.whole`), which reads the graph's lists by itself. The
# sampler built here draws a few neighbours of a few vertices, on which a model is tried before training.

_TRIED = 2
"""Neighbours per vertex in the batch that a model is tried on: whole neighbourhoods may be the whole graph."""


def _build_whole(source: GraphSource, settings: SamplerSettings) -> NeighbourSampler | TypedNeighbourSampler:
    few = settings.options.model_copy(update={"fanouts": [_TRIED] * settings.layers})
    sampler: NeighbourSampler | TypedNeighbourSampler = NEIGHBOUR.build(source, settings._replace(options=few))
    return sampler


WHOLE = SamplerEntry(
    "whole",
    _build_whole,
    frozenset({"types", "weight", "edge_weight", "exclude"}),
    batches_per_epoch=lambda options: options.steps_per_epoch,
    shuffles=False,
    supervision_apart=True,
    makes_batches=False,
)


# The sampler of models without layers: a batch is its seeds, and nothing is drawn.


class SeedSampler:
    """Makes batches without blocks. `sample` may be called from several threads at once."""

    def __init__(self, readable: Readable) -> None:
        self._counts, self._names = dict(readable.counts), readable.names

    def sample(self, seeds: Mapping[str, Array] | Array, key: BatchKey, *, exclude: object = None) -> MiniBatch:
        """The batch of some different seeds; there are no edges that could be excluded."""
        given = seeds if isinstance(seeds, Mapping) else {next(iter(self._counts)): seeds}
        checked = check_typed_seeds(given, self._counts)
        names = None
        if self._names is not None:
            names = {
                name: self._names[name][these] if name in self._names else these for name, these in checked.items()
            }
        return MiniBatch(checked, dict(checked), [], key=key, names=names)


def _build_seeds(source: GraphSource, settings: SamplerSettings) -> SeedSampler:
    if settings.layers:
        raise PenstockError(
            f"Sampler seeds draws no neighbours, and the model has {settings.layers} layers: choose model embedding,"
            " or another sampler.",
            code="unsupported-combination",
        )
    return SeedSampler(source.lists(settings.options).readable)


SEEDS = SamplerEntry("seeds", _build_seeds, frozenset({"types", "exclude"}), SEEDS_ALONE, per_layer="fanouts")
