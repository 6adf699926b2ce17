"""What layers on typed blocks share: the vertices' own terms, and which relations there are to read."""

from collections.abc import Container, Iterator, Mapping

from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import Block, TypedBlock


def own_terms(block: TypedBlock, x: Mapping[str, Tensor], layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Each type's own layer on its destination rows, for the types that have any."""
    result = {}
    for name, layer in layers.items():
        rows = block.num_dst.get(name, 0)
        if not rows:
            continue
        if name not in x or len(x[name]) < rows:
            raise PenstockError(
                f"The block needs {rows:,} rows of {name!r}, which are not in the input.", code="mismatched-inputs"
            )
        result[name] = layer(x[name][:rows])
    return result


def readable_relations(
    block: TypedBlock, x: Mapping[str, Tensor], known: Container[EdgeType], wanted: Mapping[str, Tensor]
) -> Iterator[tuple[EdgeType, Block]]:
    """The relations with edges that end in a wanted type."""
    for kind, part in block.relations.items():
        source, _, target = kind
        if target not in wanted or not part.num_edges:
            continue
        if kind not in known:
            raise PenstockError(
                f"The block has edges {edge_key(kind)}, for which the model has no weights: build the model with all"
                " edge types.",
                code="mismatched-inputs",
            )
        if source not in x or part.num_dst != len(wanted[target]):
            raise PenstockError(
                f"The block of {edge_key(kind)} does not fit the rows of its two types.", code="shape-mismatch"
            )
        yield kind, part
