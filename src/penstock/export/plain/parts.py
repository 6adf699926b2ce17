"""The parts of models by name, and how to build one from its specification."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from penstock.export.plain.attention import Gat, Transformer
from penstock.export.plain.heads import Dot, EdgeClassifier, PairMlp, RelationScorer
from penstock.export.plain.layer_ends import Join, LayerEnd
from penstock.export.plain.layers import Dense, Gcn, Gin, Sage
from penstock.export.plain.typed_layers import Hgt, OneHotRgcn, Rgcn, TypedDense, TypedGat

PARTS: dict[str, type[nn.Module]] = {
    each.__name__: each
    for each in (
        *(Sage, Gcn, Gin, Gat, Transformer, Dense, Rgcn, OneHotRgcn, TypedGat, TypedDense, Hgt, LayerEnd),
        Join,
        *(Dot, PairMlp, EdgeClassifier, RelationScorer),
    )
}


def build(spec: dict[str, Any], known: Mapping[str, type[nn.Module]] = PARTS) -> Any:
    """Build a module from its specification: `part` names its class, the rest are its arguments."""
    return known[spec["part"]](**{name: value for name, value in spec.items() if name != "part"})
