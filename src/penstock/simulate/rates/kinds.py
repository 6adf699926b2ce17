"""Which flows are of one type: what the coflow policies tell apart."""

from collections.abc import Mapping

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.rate_policy import Case

EP, PP, DP, OTHER = "ep", "pp", "dp", "other"
TYPES = {
    "ep-forward": EP,
    "ep-backward": EP,
    "pp-forward": PP,
    "pp-backward": PP,
    "pp-interleaved-forward": PP,
    "pp-interleaved-backward": PP,
    "reduce": DP,
    "gather": DP,
    "gradient": DP,
    "parameters": DP,
    "ring": DP,
    "gradients": DP,
    "weights": DP,
    "row gradients": DP,
    "rows": DP,
}
"""The type of a kind of flow: experts' all-to-alls, between stages, over data ranks; a GNN's gradients are the last."""


def rank_by_type(case: Case, ranks: Mapping[str, int], rest: int) -> Array:
    """int64 [1, flows]: the rank of each flow's type, or `rest`."""
    return rank_by_kind(case, {kind: ranks.get(kind_type, rest) for kind, kind_type in TYPES.items()}, rest)


def rank_by_kind(case: Case, ranks: Mapping[str, int], rest: int) -> Array:
    """int64 [1, flows]: the rank of each flow's kind, or `rest`."""
    return np.array([[ranks.get(kind, rest) for kind in case.kinds]], np.int64)
