"""A model on blocks: convolutions, what follows each of them, and the join of all layers.

`LayeredModel` is what models share, whether their graph has one type or several.
"""

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.nn.device.rectified import Rectified
from penstock.nn.device.rows import TableRows, compute_dtype
from penstock.nn.drop import drop
from penstock.nn.first_rows import AggregatedRows, HostRows
from penstock.nn.layer_table import layer_entry
from penstock.nn.options import ModelOptions
from penstock.nn.zoo.layer_ends import Join, LayerEnd, layer_widths
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock


class LayeredModel(nn.Module):
    """A model whose layers can be called one by one, so that inference goes layer by layer."""

    layerwise = True
    convolutions: nn.ModuleList
    ends: nn.ModuleList

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.options = options

    def layer_parameters(self, i: int) -> list[nn.Parameter]:
        """The parameters that layer i alone has."""
        return [*self.convolutions[i].parameters(), *self.ends[i].parameters()]

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


class GraphModel(LayeredModel):
    """`width` numbers a vertex in, `out` out. A graph with several types takes `TypedModel`."""

    def __init__(self, options: ModelOptions, width: int, out: int) -> None:
        super().__init__(options)
        bare = options.jump == "none"
        pairs = list(enumerate(layer_widths(options, width, out), 1))
        self.convolutions = nn.ModuleList(
            _convolution(options.of_layer(i - 1, len(pairs)), *pair, bare and i == len(pairs)) for i, pair in pairs
        )
        self.ends = nn.ModuleList(LayerEnd(options, *pair, bare and i == len(pairs)) for i, pair in pairs)
        self.joined = Join(options, out)

    def prepare(self, x: Tensor | TableRows | AggregatedRows | HostRows) -> Any:
        """The step before the first layer, a vertex at a time. Rows stay in their table where a layer reads them so."""
        if isinstance(x, AggregatedRows | HostRows):
            # They are given only where there is nothing to do before the layer.
            return x
        share = self.options.input_dropout if self.training else 0.0
        if isinstance(x, TableRows):
            if not share and self._reads_in_place and not self.options.residual:
                return x
            x = x.materialise(compute_dtype(next(self.parameters())))
        return drop(x, share)

    def layer(self, i: int, block: Block, x: Any) -> Tensor:
        """[num_dst, width of layer i] of x [num_src, width before it]."""
        result: Tensor = self.ends[i](self.convolutions[i](block, x), None if isinstance(x, Rectified) else x)
        return result

    def _rectified_layer(self, i: int, block: Block, x: Any) -> Rectified:
        """`layer`, the rectifier and dropout behind it left to the next layer."""
        end = cast(LayerEnd, self.ends[i])
        return end.rectify_later(self.convolutions[i](block, x))

    def join(self, outputs: list[Tensor]) -> Tensor:
        """[rows, out] of the layers' outputs for the same rows, or of the last one's where that is enough."""
        result: Tensor = self.joined(outputs)
        return result

    def forward(self, blocks: Sequence[Block], x: Any) -> Tensor:
        """[seeds, out] of a batch's blocks, outermost first, and its vertices' features."""
        check_blocks(self.num_layers, blocks)
        seeds, outputs = blocks[-1].num_dst, list[Tensor]()
        rows: Any = self.prepare(x)
        for i, block in enumerate(blocks):
            if self._leaves_rectifying and isinstance(block, DeviceBlock) and i < len(blocks) - 1:
                rows = self._rectified_layer(i, block, rows)
                continue
            rows = result = self.layer(i, block, rows)
            outputs.append(result[:seeds])
        return self.join(outputs)

    def normalised_rows(self, blocks: Sequence[Block]) -> list[tuple[str, int]]:
        """The rows of every batch normalisation of a batch, in order, beside the name of their type, which is none."""
        ends = cast(Sequence[LayerEnd], self.ends)
        return [("", block.num_dst) for block, end in zip(blocks, ends, strict=True) if end.batch_norm is not None]

    @property
    def _reads_in_place(self) -> bool:
        return bool(layer_entry(self.options.model).reads_in_place(self.options))

    @property
    def _leaves_rectifying(self) -> bool:
        """Whether every layer's outputs are read by the next one alone, which rectifies them on the way."""
        options = self.options
        return self._reads_in_place and options.activation == "relu" and not options.residual and options.jump == "none"


def check_blocks(layers: int, blocks: Any) -> None:
    """Refuse tensors, with which PyG's models are called, and a batch that was sampled for another depth."""
    if isinstance(blocks, Tensor | dict):
        raise PenstockError(
            "Models of ps.nn are called with the blocks of a batch, model(batch.blocks, batch.x), and not with"
            " (x, edge_index): use ps.infer(graph, model) for a whole graph, or run.export for a module that takes"
            " (x, edge_index).",
            code="wrong-type",
        )
    if layers != len(blocks):
        raise PenstockError(
            f"A model of {layers} layers was given {len(blocks)} blocks: give as many fan-outs as layers.",
            code="shape-mismatch",
        )


def _convolution(options: ModelOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
    """A layer of the chosen kind."""
    build = layer_entry(options.model).build
    if build is None:
        raise PenstockError(
            f"{options.model} is a typed model: build it with build_model, or its own class.",
            code="unsupported-combination",
        )
    layer: nn.Module = build(options, width_in, width_out, last)
    return layer
