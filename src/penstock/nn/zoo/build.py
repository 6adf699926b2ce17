"""A model from its options and the widths of a graph."""

from collections.abc import Mapping, Sequence

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.layer_table import layer_entry
from penstock.nn.options import ModelOptions
from penstock.nn.zoo.model import GraphModel
from penstock.nn.zoo.named import MLP, ONLY_RELATION
from penstock.nn.zoo.typed import TypedModel


def build_model(
    options: ModelOptions,
    in_widths: int | Mapping[str, int],
    out: int,
    edge_types: Sequence[EdgeType] | None = None,
    target_type: str | None = None,
) -> GraphModel | TypedModel:
    """A model on blocks for one width, on typed blocks for widths by node type (which takes `edge_types`).

    With `target_type` only that type's rows come out.
    """
    if not isinstance(in_widths, int):
        if edge_types is None:
            raise PenstockError(
                "A model for several node types needs the graph's edge types: pass them.", code="option-missing"
            )
        return TypedModel(options, in_widths, edge_types, out, target_type)
    entry = layer_entry(options.model)
    if entry.build is None:
        return TypedModel(options, {ONLY_RELATION[0]: in_widths}, [ONLY_RELATION], out)
    if not entry.reads_neighbours:
        return MLP.of(options, in_widths, out)
    return GraphModel(options, in_widths, out)
