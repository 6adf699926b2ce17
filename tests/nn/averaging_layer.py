"""A complete example of a kind of layer, as docs/models.md shows it: its module and its entry."""

from torch import nn

from penstock.nn.aggregation import aggregate
from penstock.nn.layers.entry import LayerEntry


class AveragingLayer(nn.Module):
    """A linear map of the mean of a vertex's neighbours."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, block, x):
        """[num_dst, out] of x [num_src, in]."""
        return self.linear(aggregate(block, x, "mean"))


AVERAGING = LayerEntry("averaging", lambda options, width_in, width_out, last: AveragingLayer(width_in, width_out))
