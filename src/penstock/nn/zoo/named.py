"""Zoo models under their usual names: `GraphSAGE(graph, hidden=256)` or `GraphSAGE(100, 47)`.

Widths come from the graph's features and labels if not given. Further keywords are fields of `ModelOptions`.
`build_model` makes a model from such options alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType
from penstock.nn.layer_table import LAYERS, WITHOUT_LAYERS, ModelName, ModelOptions, model_options
from penstock.nn.zoo.model import EmbeddingModel, GraphModel, LayeredModel
from penstock.nn.zoo.typed import TypedModel
from penstock.sampling.block import Block
from penstock.traced import new_weights

ONLY_RELATION: EdgeType = ("node", "to", "node")
"""The name of the only relation where the graph does not give one."""


class _Named(GraphModel):
    _model: ModelName

    def __init__(
        self, graph: Graph | int, out: int | None = None, hidden: int = 256, layers: int = 3, **options: Any
    ) -> None:
        chosen = model_options(model=self._model, hidden=hidden, layers=layers, **options)
        super().__init__(chosen, *plain_widths(graph, out))


class GraphSAGE(_Named):
    """GraphSAGE (Hamilton et al.): the vertex and its aggregated neighbours (`aggregate` mean, sum or max), transformed
    separately.
    """

    _model = "sage"


class GCN(_Named):
    """GCN (Kipf and Welling), normalised by true degrees."""

    _model = "gcn"


class GAT(_Named):
    """GAT (Veličković et al.): attention with `heads`."""

    _model = "gat"


class GATv2(_Named):
    """GATv2 (Brody et al.): attention whose ranking of neighbours depends on the destination."""

    _model = "gatv2"


class GIN(_Named):
    """GIN (Xu et al.): sums, as expressive as the Weisfeiler-Lehman test."""

    _model = "gin"


class GINE(_Named):
    """GINE (Hu et al.): GIN that adds edge features (`edge_width` values) to the neighbour before the ReLU."""

    _model = "gine"


class GraphTransformer(_Named):
    """A transformer's attention over neighbours (Shi et al.), with `heads`, and edge features of width `edge_width`."""

    _model = "transformer"


class MLP(_Named):
    """The baseline that ignores the graph; it accepts any number of blocks."""

    _model = "mlp"

    @classmethod
    def of(cls, options: ModelOptions, width: int, out: int) -> Self:
        """The baseline with these options."""
        return cls(width, out, **options.model_dump(exclude={"model"}))

    def forward(self, blocks: Sequence[Block], x: Any) -> Tensor:
        """[seeds, out]: neighbours' rows are dropped at once."""
        last = blocks[-1]
        return super().forward([last] * self.num_layers, x[: last.num_dst])

    def normalised_rows(self, blocks: Sequence[Block]) -> list[tuple[str, int]]:
        """The seeds' rows, in every layer."""
        return super().normalised_rows([blocks[-1]] * self.num_layers)


class _NamedTyped(TypedModel):
    """For a graph of one node type and one relation, or a single width, it takes plain blocks and tensors."""

    _model: ModelName

    def __init__(
        self,
        graph: Graph | int,
        out: int | None = None,
        hidden: int = 256,
        layers: int = 2,
        target: str | None = None,
        **options: Any,
    ) -> None:
        chosen = model_options(model=self._model, hidden=hidden, layers=layers, **options)
        if isinstance(graph, int):
            if out is None:
                raise PenstockError(
                    "The output width is not known: pass out, or a graph with labels.", code="option-missing"
                )
            super().__init__(chosen, {ONLY_RELATION[0]: graph}, [ONLY_RELATION], out)
            return
        if out is None:
            target = target or labelled_type(graph)
            out = label_width(graph.nodes[target])
        super().__init__(chosen, input_widths(graph, chosen.embedding_width), graph.edge_types, out, target)


class RGCN(_NamedTyped):
    """RGCN (Schlichtkrull et al.): a weight per relation, shared `bases`, or block-diagonal weights of `blocks`."""

    _model = "rgcn"


class HGT(_NamedTyped):
    """HGT (Hu et al.): a transformer's attention over the neighbours of all relations at once, with `heads`."""

    _model = "hgt"


def plain_widths(graph: Graph | int, out: int | None) -> tuple[int, int]:
    """Widths in and out, of a graph with one node type and one relation, or as given."""
    if isinstance(graph, int):
        return graph, _given(out)
    graph.require_one_relation("This model", "use RGCN or build_model")
    nodes = next(iter(graph.nodes.values()))
    if "x" not in nodes.fields:
        raise PenstockError(
            f"{graph.name!r} has no features x: give the width of its embeddings instead of the graph.",
            code="field-missing",
        )
    return _width(nodes.x), label_width(nodes) if out is None else out


def input_widths(graph: Graph, embedding: int) -> dict[str, int]:
    """The input width of each type; types without features have learnable embeddings."""
    return {name: _width(nodes.x) if "x" in nodes.fields else embedding for name, nodes in graph.nodes.items()}


def labelled_type(graph: Graph) -> str:
    """The only node type with labels."""
    names = [name for name, nodes in graph.nodes.items() if "y" in nodes.fields]
    if len(names) != 1:
        raise PenstockError(
            f"{len(names)} node types of {graph.name!r} have labels y: name the target type.", code="option-missing"
        )
    return names[0]


def label_width(nodes: NodeSet) -> int:
    """The output width: classes of integer labels, columns of a label matrix, one for a real number."""
    if "y" not in nodes.fields:
        raise PenstockError("The vertices have no labels y: give the output width.", code="option-missing")
    y = nodes.y
    if y.ndim == 2 and y.shape[1] > 1:
        return int(y.shape[1])
    if np.issubdtype(y.dtype, np.floating):
        return 1
    return int(y.max(initial=0)) + 1


def _width(x: Array) -> int:
    return int(x.shape[1]) if x.ndim == 2 else 1


def _given(out: int | None) -> int:
    if out is None:
        raise PenstockError("The output width is not known: pass out, or a graph with labels.", code="option-missing")
    return out


def build_model(
    options: ModelOptions,
    in_widths: int | Mapping[str, int],
    out: int,
    edge_types: Sequence[EdgeType] | None = None,
    target_type: str | None = None,
) -> LayeredModel:
    """A model on blocks for one width, on typed blocks for widths by node type (which needs `edge_types`).

    With `target_type` only that type's rows are returned.
    """
    with new_weights():
        return _built(options, in_widths, out, edge_types, target_type)


def _built(
    options: ModelOptions,
    in_widths: int | Mapping[str, int],
    out: int,
    edge_types: Sequence[EdgeType] | None,
    target_type: str | None,
) -> LayeredModel:
    if options.model in WITHOUT_LAYERS:
        return EmbeddingModel(options, in_widths, out)
    if not isinstance(in_widths, int):
        if edge_types is None:
            raise PenstockError(
                "A model for several node types needs the graph's edge types: pass them.", code="option-missing"
            )
        return TypedModel(options, in_widths, edge_types, out, target_type)
    entry = LAYERS[options.model]
    if entry.build is None:
        return TypedModel(options, {ONLY_RELATION[0]: in_widths}, [ONLY_RELATION], out)
    if not entry.reads_neighbours:
        return MLP.of(options, in_widths, out)
    return GraphModel(options, in_widths, out)
