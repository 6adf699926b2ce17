"""The parameters of a synthetic graph: counts, degrees, communities, features."""

from dataclasses import dataclass, replace

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType


@dataclass(frozen=True)
class NodeRecipe:
    """One node type. `splits` are (train, val, test) counts; vertices outside them carry no label."""

    count: int
    features: int = 0
    splits: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class EdgeRecipe:
    """One relation. `count` is the number of list entries stored, both directions of a symmetric edge counted."""

    type: EdgeType
    count: int
    symmetric: bool = False
    degree_exponent: float = 2.3
    """Exponent of the power law of the number of neighbours a vertex chooses."""
    hub_bias: float = 2.0
    """A choice inside a community falls on rank size·t^bias, t uniform: 1 is even, larger values make hubs."""
    max_degree: int = 10_000
    within_community: float = 0.65
    within_class: float = 0.29
    """Share of choices in the own community and in its class; the rest fall in related classes."""
    surplus: float = 1.0
    """Choices made per edge wanted, which compensates for duplicates. Calibrated per set."""
    held_out: tuple[float, float] = (0.0, 0.0)
    """Share of (val, test) edges kept out of the lists, for link prediction; symmetric relations only."""


@dataclass(frozen=True)
class GraphRecipe:
    """A whole synthetic data set."""

    name: str
    summary: str
    nodes: dict[str, NodeRecipe]
    edges: tuple[EdgeRecipe, ...]
    classes: int
    separation: float = 1.8
    """Distance between two class centres in units of the features' noise: how informative features alone are."""
    label_noise: float = 0.08
    """Share of vertices whose label is drawn at random, so that no model can reach 1."""
    community_sizes: tuple[int, int] = (100, 5_000)
    feature_dtype: str = "float32"

    def scaled(self, scale: float) -> "GraphRecipe":
        """The same kind of graph with `scale` times the vertices, edges and split sizes."""
        if not 0 < scale <= 100:
            raise PenstockError(
                f"--scale {scale} is out of range: give a number above 0 and up to 100.", code="value-out-of-range"
            )

        def times(count: int) -> int:
            return max(1, round(count * scale))

        nodes = {
            name: replace(
                recipe,
                count=times(recipe.count),
                splits=None if recipe.splits is None else _scaled_splits(recipe, times(recipe.count), scale),
            )
            for name, recipe in self.nodes.items()
        }
        edges = tuple(replace(recipe, count=times(recipe.count)) for recipe in self.edges)
        return replace(self, nodes=nodes, edges=edges)

    def made_symmetric(self) -> "GraphRecipe":
        """Both directions of every edge between vertices of one type: twice the list entries."""
        edges = tuple(
            edge
            if edge.symmetric or edge.type[0] != edge.type[2]
            else replace(edge, symmetric=True, count=2 * edge.count)
            for edge in self.edges
        )
        return replace(self, edges=edges)


def _scaled_splits(recipe: NodeRecipe, count: int, scale: float) -> tuple[int, int, int]:
    assert recipe.splits is not None
    train, val, test = recipe.splits
    small_train, small_val = max(1, round(train * scale)), max(1, round(val * scale))
    if sum(recipe.splits) == recipe.count:
        return small_train, small_val, max(0, count - small_train - small_val)
    return small_train, small_val, max(1, round(test * scale))
