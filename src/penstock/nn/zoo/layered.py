"""What models made of layers have in common, whether their graph has one type or several."""

from torch import nn

from penstock.nn.options import ModelOptions


class LayeredModel(nn.Module):
    """A model whose layers can be called one by one, so that inference goes layer by layer."""

    layerwise = True

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.options = options

    @property
    def num_layers(self) -> int:
        """Layers, and blocks of a batch."""
        return self.options.layers

    @property
    def needs_all_outputs(self) -> bool:
        """Whether `join` reads all layers' outputs rather than the last."""
        return self.options.jump != "none"

    @property
    def needs_totals(self) -> bool:
        """Whether blocks must say how long whole lists are; GCN's for their source rows too."""
        return self.options.needs_totals
