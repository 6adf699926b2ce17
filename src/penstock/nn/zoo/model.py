"""A model on blocks: convolutions, what follows each of them, the join of all layers; and the model without layers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.nn.aggregation import AggregatedRows, HostRows
from penstock.nn.device.drop import Rectified
from penstock.nn.device.gather import TableRows, compute_dtype
from penstock.nn.device.products import Ending
from penstock.nn.drop import drop, next_dropping, rectify_later, relu_drop, skip_drop
from penstock.nn.layer_table import LAYERS, ModelOptions
from penstock.nn.norm import BatchNorm
from penstock.sampling.block import Block

# What follows convolutions in a model: residual, norm, activation, dropout; and the join of all layers.


class LayerEnd(nn.Module):
    """dropout(activation(norm(y + own))) of a convolution's rows y; only y + own after the last layer."""

    def __init__(self, options: ModelOptions, width_in: int, width_out: int, last: bool) -> None:
        super().__init__()
        self.bare, self.dropout, self.activation = last, options.dropout, options.activation
        self.residual: nn.Module | None = None
        if options.residual:
            same = width_in == width_out
            self.residual = nn.Identity() if same else nn.Linear(width_in, width_out, bias=False)
        self.norm = None if last else _norm(options.norm, width_out)

    def forward(self, y: Tensor, own: Tensor | TableRows | None, node_type: str | None = None) -> Tensor:
        """The layer's output for the convolution's rows; `own` is the layer's input, whose first rows are the same
        vertices'.

        `node_type` is the rows' type, in a batch of several.
        """
        if self.residual is not None and own is not None:
            y = y + self.residual(own[: len(y)])
        if self.bare:
            return y
        if self.norm is not None:
            y = self.norm(y)
        if self.activation == "relu":
            return relu_drop(y, self._share, node_type)
        return drop(functional.elu(y), self._share, node_type)

    def without_rows(self) -> None:
        """Replaces `forward` where a part of a batch has no rows to compute."""
        if self.batch_norm is not None:
            self.batch_norm.without_rows()
        if not self.bare:
            skip_drop(self._share)

    def rectify_later(self, y: Tensor | Rectified) -> Rectified:
        """The same without a residual; the backward pass of ReLU and dropout is left to the reader of the rows."""
        if isinstance(y, Rectified):
            return y
        if self.batch_norm is not None:
            return self.batch_norm.rectify_later(y, self._share)
        return rectify_later(y if self.norm is None else self.norm(y), self._share)

    @property
    def ending(self) -> Ending | None:
        """What follows the convolution's rows, if a convolution may do that itself."""
        return None if self.norm is not None else lambda rows: next_dropping(rows, self._share)

    @property
    def _share(self) -> float:
        """The dropout share, 0 in evaluation."""
        return self.dropout if self.training else 0.0

    @property
    def batch_norm(self) -> BatchNorm | None:
        """The norm, if it is a batch normalisation."""
        return self.norm if isinstance(self.norm, BatchNorm) else None


class Join(nn.Module):
    """Joins all layers' outputs of the same rows: the last one, or a linear head on all of them."""

    def __init__(self, options: ModelOptions, out: int) -> None:
        super().__init__()
        self.jump = options.jump
        width = options.hidden * options.layers if options.jump == "cat" else options.hidden
        self.head = None if options.jump == "none" else nn.Linear(width, out)

    def forward(self, outputs: list[Tensor]) -> Tensor:
        """The joined rows, of shape [rows, out]."""
        if self.head is None:
            return outputs[-1]
        rows = torch.cat(outputs, dim=1) if self.jump == "cat" else torch.stack(outputs).amax(dim=0)
        result: Tensor = self.head(rows)
        return result


def layer_widths(options: ModelOptions, width: int, out: int) -> list[tuple[int, int]]:
    """Widths in and out of every layer; with jumping knowledge the head has the width `out`."""
    last = out if options.jump == "none" else options.hidden
    widths = [width] + [options.hidden] * (options.layers - 1) + [last]
    return list(pairwise(widths))


def _norm(name: str, width: int) -> nn.Module | None:
    if name == "none":
        return None
    return BatchNorm(width) if name == "batch" else nn.LayerNorm(width)


# A model on blocks: convolutions, what follows each of them, and the join of all layers.
#
# `LayeredModel` is what models share, whether their graph has one type or several.


class LayeredModel(nn.Module):
    """A model whose layers can be called one by one, so that inference goes layer by layer."""

    layerwise = True
    convolutions: nn.ModuleList
    ends: nn.ModuleList

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.options = options

    def layer_parameters(self, i: int) -> list[nn.Parameter]:
        """The parameters that only layer i has."""
        return [*self.convolutions[i].parameters(), *self.ends[i].parameters()]

    @property
    def num_layers(self) -> int:
        """The number of layers, and of a batch's blocks."""
        return self.options.layers

    @property
    def needs_all_outputs(self) -> bool:
        """Whether `join` reads all layers' outputs rather than the last."""
        return self.options.jump != "none"

    @property
    def needs_totals(self) -> bool:
        """Whether blocks must hold the lengths of whole lists; GCN's also for their source rows."""
        return self.options.needs_totals


class GraphModel(LayeredModel):
    """`width` values per vertex in, `out` out. Graphs with several types take `TypedModel`."""

    def __init__(self, options: ModelOptions, width: int, out: int) -> None:
        super().__init__(options)
        self._reads_in_place = bool(LAYERS[options.model].reads_in_place(options))
        self._reads_rectified = self._reads_in_place or LAYERS[options.model].reads_rectified
        bare = options.jump == "none"
        pairs = list(enumerate(layer_widths(options, width, out), 1))
        self.convolutions = nn.ModuleList(
            _convolution(options.of_layer(i - 1, len(pairs)), *pair, bare and i == len(pairs)) for i, pair in pairs
        )
        self.ends = nn.ModuleList(LayerEnd(options, *pair, bare and i == len(pairs)) for i, pair in pairs)
        self.joined = Join(options, out)

    def prepare(self, x: Tensor | TableRows | AggregatedRows | HostRows) -> Any:
        """The step before the first layer, vertex by vertex. Rows stay in their table where a layer
        reads them there.
        """
        if isinstance(x, AggregatedRows | HostRows):
            # These forms are given only where there is nothing to do before the layer.
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
        """`layer`, with the backward pass of its ReLU and dropout left to the next layer."""
        end = cast(LayerEnd, self.ends[i])
        return end.rectify_later(self.convolutions[i](block, x, end=end.ending))

    def join(self, outputs: list[Tensor]) -> Tensor:
        """[rows, out] from the layers' outputs for the same rows, or from the last one's if that is enough."""
        result: Tensor = self.joined(outputs)
        return result

    def forward(self, blocks: Sequence[Block], x: Any) -> Tensor:
        """[seeds, out] of a batch's blocks, outermost first, and its vertices' features."""
        check_blocks(self.num_layers, blocks)
        seeds, outputs = blocks[-1].num_dst, list[Tensor]()
        rows: Any = self.prepare(x)
        for i, block in enumerate(blocks):
            if self._leaves_rectifying and block.on_device and i < len(blocks) - 1:
                rows = self._rectified_layer(i, block, rows)
                continue
            rows = result = self.layer(i, block, rows)
            outputs.append(result[:seeds])
        return self.join(outputs)

    def normalised_rows(self, blocks: Sequence[Block]) -> list[tuple[str, int]]:
        """(type, rows) of every batch normalisation of a batch, in order; the type is empty here."""
        ends = cast(Sequence[LayerEnd], self.ends)
        return [("", block.num_dst) for block, end in zip(blocks, ends, strict=True) if end.batch_norm is not None]

    @property
    def _leaves_rectifying(self) -> bool:
        """Whether every layer's output is read only by the next one, which applies the backward pass of the ReLU."""
        options = self.options
        is_bare = not options.residual and options.jump == "none"
        return self._reads_rectified and options.activation == "relu" and is_bare


def check_blocks(layers: int, blocks: Any) -> None:
    """Refuse tensors, which PyG's models take, and a batch that was sampled for another depth."""
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
    build = LAYERS[options.model].build
    if build is None:
        raise PenstockError(
            f"{options.model} is a typed model: build it with build_model, or its own class.",
            code="unsupported-combination",
        )
    layer: nn.Module = build(options, width_in, width_out, last)
    return layer


# The model without layers: a vertex's output is its embedding, or its features.

Rows = dict[str, Tensor]


class EmbeddingModel(LayeredModel):
    """Returns its input rows, with `input_dropout` in training; for tasks whose scorer does the rest."""

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
        """Zero: batches have no blocks."""
        return 0

    def layer_parameters(self, i: int) -> list[Any]:
        """Empty: there are no layers."""
        return []

    def prepare(self, x: Rows | Tensor) -> Any:
        """Apply the input dropout in training."""
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
        """The last of the outputs, unchanged."""
        return outputs[-1]

    def forward(self, blocks: Sequence[Any], x: Rows | Tensor) -> Any:
        """The seeds' own rows: a batch without blocks has no other vertices."""
        return self.prepare(x)

    def normalised_rows(self, blocks: Sequence[Any]) -> list[tuple[str, int]]:
        """An empty list: without layers there is no normalisation whose statistics workers would share."""
        return []
