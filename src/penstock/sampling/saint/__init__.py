"""GraphSAINT (Zeng et al., ICLR 2020): a batch is the subgraph induced by what some independent draws visit.

`sampler` makes batches; `vertices`, `edges` and `walks` say what a draw is; `inclusion` has the estimator's weights.
"""

from penstock.sampling.saint.sampler import Saint

__all__ = ["Saint"]
