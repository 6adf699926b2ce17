"""GraphSAINT (Zeng et al., ICLR 2020): a batch is the subgraph induced by what some independent draws visit.

`sampler` makes batches, also those of single vertices; `edges` and `walks` say what a draw is; `inclusion` has the
estimator's weights.
"""

from penstock.sampling.registry import GraphSource, SamplerEntry, SamplerSettings
from penstock.sampling.saint.sampler import Saint

__all__ = ["SAINT_EDGE", "SAINT_VERTEX", "SAINT_WALK", "Saint"]


def _entry(kind: str) -> SamplerEntry:
    name = f"saint-{kind}"

    def build(source: GraphSource, settings: SamplerSettings) -> Saint:
        options = settings.options
        return Saint(
            source.whole_lists(name),
            source.training_vertices(),
            kind=kind,
            size=options.saint_size,
            walk_length=options.walk_length,
            layers=settings.layers,
        )

    return SamplerEntry(name, build, joint=True, items_per_batch=lambda options: 1, shuffles=False)


SAINT_VERTEX = _entry("vertex")
SAINT_EDGE = _entry("edge")
SAINT_WALK = _entry("walk")
