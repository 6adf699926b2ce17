"""The sampler `explained`: plain neighbour sampling until there is an explanation, then draws by its scores."""

from typing import Any, cast

from penstock.sampling.block import Block, MiniBatch, TypedBlock
from penstock.sampling.explained.options import ExplainOptions
from penstock.sampling.explanation import Explanation
from penstock.sampling.key import BatchKey
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.registry import GraphSource, Locality, SamplerEntry, SamplerSettings
from penstock.sampling.typed import NEIGHBOUR, TypedNeighbourSampler

Batch = MiniBatch[Block] | MiniBatch[TypedBlock]


class ExplainedSampler:
    """Draws a batch by the explanation that is in force for it, and waits until there is that explanation."""

    def __init__(self, plain: NeighbourSampler | TypedNeighbourSampler, locality: Locality) -> None:
        self._plain, self._locality = plain, locality
        self._newest: tuple[Explanation, NeighbourSampler | TypedNeighbourSampler] | None = None

    def sample(self, seeds: Any, key: BatchKey) -> Batch:
        """The batch of some different seeds; it carries its explanation, where there is one."""
        explanation = self._locality.explanation(key)
        if explanation is None:
            return self._plain.sample(seeds, key)
        batch: Batch = self._sampler_by(explanation).sample(seeds, key)
        batch.explanation = explanation
        return batch

    def _sampler_by(self, explanation: Explanation) -> NeighbourSampler | TypedNeighbourSampler:
        newest = self._newest
        if newest is None or newest[0] is not explanation:
            newest = explanation, self._plain.drawing_from(self._locality.lists(explanation))
            self._newest = newest
        return newest[1]


def _build(source: GraphSource, settings: SamplerSettings) -> ExplainedSampler:
    plain = cast(NeighbourSampler | TypedNeighbourSampler, NEIGHBOUR.build(source, settings))
    return ExplainedSampler(plain, source.locality(settings.options))


EXPLAINED = SamplerEntry(
    "explained",
    _build,
    frozenset({"types"}),
    per_layer="fanouts",
    own_options=ExplainOptions,
    local=True,
    settled={"explain_every": 3, "explain_delay": 0},
)
