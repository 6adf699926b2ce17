"""A model on typed blocks: every node type has its own input projection, layer ends and rows."""

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.drop import drop, skip_drop
from penstock.nn.layer_table import LAYERS, ModelOptions
from penstock.nn.layers import OneHotRGCNLayer, RGCNLayer
from penstock.nn.options import ONE_HOT
from penstock.nn.zoo.model import Join, LayeredModel, LayerEnd, check_blocks, layer_widths
from penstock.sampling.block import Block

Rows = dict[str, Tensor]


class TypedModel(LayeredModel):
    """`in_widths[t]` values per vertex of type t in, `out` out, for every type or only for `target_type`.

    Several types are first projected to `hidden`. Tensors come and go by node type; types that a block lacks are
    skipped. With one node type and one relation, the relation's own blocks and plain tensors are taken (and given) as
    well.
    """

    def __init__(
        self,
        options: ModelOptions,
        in_widths: Mapping[str, int],
        edge_types: Sequence[EdgeType],
        out: int,
        target_type: str | None = None,
    ) -> None:
        super().__init__(options)
        if target_type is not None and target_type not in in_widths:
            raise PenstockError(
                f"There is no node type {target_type!r} (types: {', '.join(in_widths)}).", code="unknown-name"
            )
        self.node_types, self.edge_types = list(in_widths), list(edge_types)
        one_hot = options.embedding == ONE_HOT
        several = len(in_widths) > 1 and not one_hot
        self.projections = nn.ModuleList(nn.Linear(width, options.hidden) for width in in_widths.values() if several)
        self.convolutions, self.ends = nn.ModuleList(), nn.ModuleList()
        pairs = layer_widths(options, options.hidden if several else next(iter(in_widths.values())), out)
        self._types = [self.node_types] * (len(pairs) - 1) + [[target_type] if target_type else self.node_types]
        if one_hot:
            _check_one_hot(options, in_widths, pairs[0])
        for names, pair in zip(self._types, pairs, strict=True):
            last = len(self.ends) == len(pairs) - 1 and options.jump == "none"
            kinds = [kind for kind in self.edge_types if kind[2] in names]
            if one_hot and not self.convolutions:
                first = OneHotRGCNLayer(options.hidden, names, kinds, options.bases, options.aggregate)
                self.convolutions.append(first)
            else:
                own = options.of_layer(len(self.convolutions), len(pairs))
                self.convolutions.append(_convolution(own, *pair, names, kinds, last))
            self.ends.append(nn.ModuleList(LayerEnd(options, *pair, last) for _ in names))
        self.joined = Join(options, out)

    def prepare(self, x: Rows | Tensor) -> Rows | Tensor:
        """The step before the first layer, vertex by vertex: every type to `hidden`, where there are several."""
        share = self.options.input_dropout if self.training else 0.0
        if isinstance(x, Tensor):
            return drop(x, share)
        if unknown := set(x) - set(self.node_types):
            raise PenstockError(
                f"The model has no node type {min(unknown)!r} (types: {', '.join(self.node_types)}).",
                code="unknown-name",
            )
        prepared = {}
        # In the model's order, and including types without rows, so that calls of dropout are numbered alike
        # everywhere.
        for place, name in enumerate(self.node_types):
            if name not in x:
                skip_drop(share)
                continue
            rows = drop(x[name], share, name)
            prepared[name] = self.projections[place](rows) if self.projections else rows
        return prepared

    def layer(self, i: int, block: Block, x: Rows | Tensor) -> Rows | Tensor:
        """[dst_counts[t], width of layer i] of every type that has rows to compute."""
        if block.has_lists:
            return self._plain(i, block, x)
        given = cast(Rows, x)
        names, ends = self._types[i], cast(nn.ModuleList, self.ends[i])
        computed, result = self.convolutions[i](block, given), {}
        for name, module in zip(names, ends, strict=True):
            end = cast(LayerEnd, module)
            if name in computed:
                rows = computed[name]
                result[name] = end(rows, given[name][: len(rows)], name)
            else:
                end.without_rows()
        return result

    def join(self, outputs: Sequence[Rows | Tensor]) -> Rows | Tensor:
        """[rows, out] by type, of the layers' outputs for the same rows."""
        if isinstance(outputs[-1], Tensor):
            result: Tensor = self.joined(list(outputs))
            return result
        layers = cast(Sequence[Rows], outputs)
        return {name: self.joined([layer[name] for layer in layers]) for name in layers[-1]}

    def forward(self, blocks: Sequence[Block], x: Rows | Tensor) -> Rows | Tensor:
        """[seeds, out] by type, of a batch's blocks, outermost first, and its vertices' features."""
        check_blocks(self.num_layers, blocks)
        outputs, x = [], self.prepare(x)
        for i, block in enumerate(blocks):
            x = self.layer(i, block, x)
            outputs.append(x)
        if not self.needs_all_outputs:
            return self.join(outputs[-1:])
        return self.join([_first_rows(rows, outputs[-1]) for rows in outputs])

    def normalised_rows(self, blocks: Sequence[Block]) -> list[tuple[str, int]]:
        """(type, rows) of every batch normalisation of a batch, in order; also of types without rows in it."""
        found = []
        for block, names, ends in zip(blocks, self._types, self.ends, strict=True):
            rows = block.named(self.edge_types).dst_counts
            norms = (cast(LayerEnd, end).batch_norm for end in cast(nn.ModuleList, ends))
            found += [(name, rows.get(name, 0)) for name, norm in zip(names, norms, strict=True) if norm is not None]
        return found

    def _plain(self, i: int, block: Block, x: Rows | Tensor) -> Tensor:
        """A layer of the only relation, on its block."""
        if len(self.node_types) != 1 or len(self.edge_types) != 1 or not isinstance(x, Tensor):
            raise PenstockError(
                "A model of several types or relations needs blocks of several relations and tensors by node type.",
                code="wrong-type",
            )
        name = self.node_types[0]
        result = cast(Rows, self.layer(i, block.named(self.edge_types), {name: x}))
        if name in result:
            return result[name]
        # A worker's share of a batch may have no seeds; its empty outputs must still have a gradient.
        none: Tensor = cast(RGCNLayer, self.convolutions[i]).own[0](x[:0])
        return none


def _check_one_hot(options: ModelOptions, in_widths: Mapping[str, int], first: tuple[int, int]) -> None:
    """Refuse one-hot input with features, or with a single layer."""
    featured = [name for name, width in in_widths.items() if width != options.embedding_width]
    if featured:
        raise PenstockError(
            f"embedding one-hot is for graphs without features, and {featured[0]!r} has some"
            f" ({in_widths[featured[0]]} numbers): give a width, or name features that no type has.",
            code="unsupported-combination",
        )
    if first[1] != options.hidden:
        raise PenstockError(
            "embedding one-hot needs at least two layers: give two fan-outs or more.", code="unsupported-combination"
        )


def _first_rows(rows: Rows | Tensor, last: Rows | Tensor) -> Rows | Tensor:
    """Those of the rows that the last layer has as well."""
    if isinstance(rows, Tensor) or isinstance(last, Tensor):
        return cast(Tensor, rows)[: len(last)]
    return {name: rows[name][: len(kept)] for name, kept in last.items()}


def _convolution(
    options: ModelOptions,
    width_in: int,
    width_out: int,
    node_types: Sequence[str],
    edge_types: Sequence[EdgeType],
    last: bool,
) -> nn.Module:
    """A layer of the chosen kind, for the relations that end in `node_types`."""
    build = LAYERS[options.model].build_typed
    if build is None:
        typed = [name for name in LAYERS if LAYERS[name].build_typed is not None]
        raise PenstockError(
            f"Model {options.model!r} is for one node type and one relation: choose one of {', '.join(typed)}.",
            code="unsupported-combination",
        )
    layer: nn.Module = build(options, width_in, width_out, node_types, edge_types, last)
    return layer
