"""`hermod`: strict priority by step, microbatch, type and layer.

Within a microbatch, experts' all-to-alls and what passes between stages go before gradients (experts before stages
where chunks are interleaved), and lower layers before higher ones. Parameters that are gathered for the next step count
as its first microbatch's, and there the layer counts before the type: what the front layers need comes first. A GNN's
batches are its steps: what an earlier batch needs goes first, and of one batch gradients and parameters first.

Open in the source: "a DP coflow competes by layer" makes no order of three factors; counting gathers as the first
microbatch of the next step does, and agrees with all of its cases.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.rates.kinds import TYPES, rank_by_kind
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.state import Terms

_FIRST, _SECOND, _LAST = range(3)
_ORDER = dict.fromkeys(TYPES, _FIRST) | {
    "pp-interleaved-forward": _SECOND,
    "pp-interleaved-backward": _SECOND,
    "reduce": _LAST,
    "gather": _LAST,
    "batch": _SECOND,
    "blocks": _SECOND,
    "lists": _SECOND,
}


def model_ranks(case: Case) -> Array:
    """int64 [iterations, flows]: the order of the coflows, from their factors."""
    kinds = rank_by_kind(case, _ORDER, _LAST)[0]
    gathers, reductions = (np.array([kind == each for kind in case.kinds]) for each in ("gather", "reduce"))
    microbatch = case.microbatches.astype(np.int64)
    layer = case.layers.astype(np.int64)
    widths = (int(microbatch.max(initial=0)) + 1, max(3, int(layer.max(initial=0)) + 1) + 1)
    by_layer = microbatch == 0
    higher, lower = np.where(by_layer, layer, kinds), np.where(by_layer, kinds, layer)
    # Reductions come last in their microbatch, also where it is the first because it is the only one.
    higher, lower = np.where(reductions, widths[1] - 1, higher), np.where(reductions, layer, lower)
    step = np.arange(len(case.amounts.sizes), dtype=np.int64)[:, None] + gathers[None, :]
    return np.asarray(((step * widths[0] + microbatch) * widths[1] + higher) * widths[1] + lower)


def _terms(case: Case) -> Terms:
    return terms_of(case, rank=model_ranks(case))


HERMOD = RatePolicy("hermod", PRIORITY, _terms)
