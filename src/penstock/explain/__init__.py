"""Explains predictions by masks between 0 and 1 over edges, vertices or columns, found by gradient descent.

`mask_optimiser` finds masks under GNNExplainer's objective and knows neither graphs nor models: its caller gives a
function from masks to outputs. `explainer` makes the batch of one vertex with masked edges and finds the masks of its
output, and holds these with the user's ids.
"""

from penstock.explain.mask_optimiser import FoundMasks, Mask, MaskOptions, optimise_masks, target_of
from penstock.registry import make_callable

__all__ = ["FoundMasks", "Mask", "MaskOptions", "optimise_masks", "target_of"]

make_callable(__name__)
