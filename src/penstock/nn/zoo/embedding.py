"""The model without layers: a vertex's row is its embedding, or its features as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from penstock.errors import PenstockError
from penstock.nn.drop import drop, skip_drop
from penstock.nn.options import ModelOptions
from penstock.nn.zoo.model import LayeredModel

Rows = dict[str, Tensor]


class EmbeddingModel(LayeredModel):
    """Gives the rows that it is given, with `input_dropout` in training; for tasks whose scorer does the rest."""

    def __init__(self, options: ModelOptions, in_widths: int | Mapping[str, int], out: int) -> None:
        super().__init__(options)
        widths = {"": in_widths} if isinstance(in_widths, int) else dict(in_widths)
        self.node_types = list(widths)
        for name, width in widths.items():
            if width != out:
                whose = f" of {name!r}" if name else ""
                raise PenstockError(
                    f"Model {options.model} gives the rows{whose} as they are, {width} numbers, and the task needs"
                    f" {out}: set `embedding`, or choose a model with layers.",
                    code="unsupported-combination",
                )

    @property
    def num_layers(self) -> int:
        """None: batches have no blocks."""
        return 0

    def layer_parameters(self, i: int) -> list[Any]:
        """There are no layers that could have any."""
        return []

    def prepare(self, x: Rows | Tensor) -> Any:
        """Dropout, in training."""
        share = self.options.input_dropout if self.training else 0.0
        if isinstance(x, Tensor):
            return drop(x, share)
        prepared = {}
        for name in self.node_types:
            if name in x:
                prepared[name] = drop(x[name], share, name)
            else:
                skip_drop(share)
        return prepared

    def join(self, outputs: list[Any]) -> Any:
        """The last of them."""
        return outputs[-1]

    def forward(self, blocks: Sequence[Any], x: Rows | Tensor) -> Any:
        """The seeds' own rows: a batch without blocks has no other vertices."""
        return self.prepare(x)

    def normalised_rows(self, blocks: Sequence[Any]) -> list[tuple[str, int]]:
        """Nothing is normalised."""
        return []
