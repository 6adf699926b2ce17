"""Describes a model's parts as specifications of the modules in `plain`.

A layer or scorer that is not in these tables has no plain form, and exporting it raises an error.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from penstock.errors import PenstockError
from penstock.nn.layers.attention import GATLayer, TransformerLayer, TypedGATLayer
from penstock.nn.layers.convolutions import DenseLayer, GCNLayer, GINELayer, GINLayer, SAGELayer, TypedDenseLayer
from penstock.nn.layers.hgt import HGTLayer
from penstock.nn.layers.rgcn import OneHotRGCNLayer, RGCNLayer
from penstock.nn.scorers import (
    ComplExScorer,
    DistMultScorer,
    DotScorer,
    EdgeClassifier,
    MLPScorer,
    RotatEScorer,
    TransEScorer,
)
from penstock.nn.zoo.model import Join, LayerEnd

Spec = dict[str, Any]


def part_spec(module: nn.Module) -> Spec:
    """The specification of a layer or a scorer."""
    describe = _PARTS.get(type(module))
    if describe is None:
        raise PenstockError(
            f"{type(module).__name__} has no plain form to export: save `run.model().state_dict()`, and use it with its"
            " own code.",
            code="unsupported-combination",
        )
    return describe(module)


def end_spec(end: LayerEnd, width_in: int, width_out: int, norm: str) -> Spec:
    """The specification of the residual, norm and activation behind a layer of these widths."""
    how = {"residual": end.residual is not None, "norm": norm, "activation": end.activation, "bare": end.bare}
    return {"part": "LayerEnd", "width_in": width_in, "width_out": width_out, **how}


def join_spec(join: Join) -> Spec:
    """The specification of the module that joins the outputs of all layers."""
    widths = (0, 0) if join.head is None else (join.head.in_features, join.head.out_features)
    return {"part": "Join", "jump": join.jump, "width_in": widths[0], "width_out": widths[1]}


def _linear(layer: Any) -> dict[str, int]:
    return {"width_in": layer.in_features, "width_out": layer.out_features}


def _gat(layer: Any) -> Spec:
    return {
        "part": "Gat",
        "width_in": layer.source.in_features,
        "size": layer.size,
        "heads": layer.heads,
        "concat": layer.concat,
        "v2": layer.v2,
        "slope": layer.slope,
        "self_loop": layer.self_loop,
        "two_sided": layer.target is not None,
        "bias": layer.bias is not None,
        "edge_width": _edge_width(layer),
    }


def _transformer(layer: Any) -> Spec:
    size = {"size": layer.size, "heads": layer.heads, "concat": layer.concat, "edge_width": _edge_width(layer)}
    return {"part": "Transformer", "width_in": layer.key.in_features, **size}


def _edge_width(layer: Any) -> int:
    return 0 if layer.edge is None else int(layer.edge.in_features)


def _mlp_widths(layer: Any) -> dict[str, int]:
    first, *_ = layer.mlp
    return _linear(first)


def _typed(layer: Any) -> dict[str, Any]:
    return {"types": layer.node_types, "kinds": [list(kind) for kind in layer._place]}


def _rgcn(layer: Any) -> Spec:
    bases = 0 if layer.mixture is None else layer.mixture.shape[1]
    blocks = layer.weight.shape[1] if layer.weight.dim() > 3 else 0
    how = {"bases": bases, "reduce": layer.reduce, "blocks": blocks}
    return {"part": "Rgcn", **_linear(layer.own[0]), **_typed(layer), **how}


def _hgt(layer: Any) -> Spec:
    answer = layer.own[0].answer
    how = {"heads": layer.heads, "answer": 0 if answer is None else answer.out_features}
    width = {"width_in": layer.query[0].in_features, "width": layer.heads * layer.size}
    return {"part": "Hgt", **width, **_typed(layer), **how}


def _relation_scorer(form: str) -> Callable[[Any], Spec]:
    def describe(scorer: Any) -> Spec:
        rows, columns = scorer.vectors.shape
        more = {name: getattr(scorer, name) for name in ("margin", "distance") if hasattr(scorer, name)}
        return {"part": "RelationScorer", "form": form, "rows": rows, "columns": columns, **more}

    return describe


def _pair_mlp(scorer: Any) -> Spec:
    first = scorer.layers[0]
    return {"part": "PairMlp", "width": first.in_features, "hidden": first.out_features}


def _classifier(scorer: Any) -> Spec:
    first, last = scorer.layers[0], scorer.layers[-1]
    widths = {"width": first.in_features // 4, "hidden": first.out_features, "width_out": last.out_features}
    return {"part": "EdgeClassifier", **widths}


_PARTS: dict[type[nn.Module], Callable[[Any], Spec]] = {
    SAGELayer: lambda layer: {"part": "Sage", **_linear(layer.own), "reduce": layer.reduce},
    GCNLayer: lambda layer: {"part": "Gcn", **_linear(layer.linear)},
    GINLayer: lambda layer: {"part": "Gin", **_mlp_widths(layer)},
    GINELayer: lambda layer: {"part": "Gin", **_mlp_widths(layer), "edge_width": _edge_width(layer)},
    GATLayer: _gat,
    TransformerLayer: _transformer,
    DenseLayer: lambda layer: {"part": "Dense", **_linear(layer.linear)},
    RGCNLayer: _rgcn,
    OneHotRGCNLayer: lambda layer: {
        "part": "OneHotRgcn",
        "width": layer.width,
        **_typed(layer),
        "bases": layer.bases,
        "reduce": layer.reduce,
    },
    TypedGATLayer: lambda layer: {
        "part": "TypedGat",
        **_linear(layer.own[0]),
        **_typed(layer),
        "attention": _gat(layer.relations[0]),
    },
    HGTLayer: _hgt,
    TypedDenseLayer: lambda layer: {"part": "TypedDense", **_linear(layer.own[0]), "types": layer.node_types},
    DotScorer: lambda scorer: {"part": "Dot"},
    MLPScorer: _pair_mlp,
    EdgeClassifier: _classifier,
    DistMultScorer: _relation_scorer("distmult"),
    ComplExScorer: _relation_scorer("complex"),
    TransEScorer: _relation_scorer("transe"),
    RotatEScorer: _relation_scorer("rotate"),
}
"""The function that specifies a part, by the part's class."""


def renamed_weights(learned: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A session's weights under the names that they have in the plain module."""
    return {name.removeprefix("model."): values.detach().cpu() for name, values in learned.items()}
