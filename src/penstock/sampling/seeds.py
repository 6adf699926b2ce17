"""The sampler of models without layers: a batch is its seeds, and nothing is drawn."""

from collections.abc import Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.block import MiniBatch
from penstock.sampling.key import BatchKey
from penstock.sampling.lists import Readable, check_typed_seeds
from penstock.sampling.registry import GraphSource, SamplerEntry, SamplerSettings


class SeedSampler:
    """Gives batches without blocks. `sample` may be called from several threads at once."""

    def __init__(self, readable: Readable) -> None:
        self._counts, self._names = dict(readable.counts), readable.names

    def sample(self, seeds: Mapping[str, Array] | Array, key: BatchKey, *, exclude: object = None) -> MiniBatch[Any]:
        """The batch of some different seeds; there are no edges that could be excluded."""
        given = seeds if isinstance(seeds, Mapping) else {next(iter(self._counts)): seeds}
        checked = check_typed_seeds(given, self._counts)
        names = None
        if self._names is not None:
            names = {
                name: self._names[name][these] if name in self._names else these for name, these in checked.items()
            }
        return MiniBatch(checked, dict(checked), [], key=key, names=names)


def _build(source: GraphSource, settings: SamplerSettings) -> SeedSampler:
    if settings.layers:
        raise PenstockError(
            f"Sampler seeds draws no neighbours, and the model has {settings.layers} layers: choose model embedding,"
            " or another sampler.",
            code="unsupported-combination",
        )
    return SeedSampler(source.lists(settings.options).readable)


SEEDS = SamplerEntry("seeds", _build, frozenset({"types", "exclude"}), per_layer="fanouts")
