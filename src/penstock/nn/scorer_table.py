"""The scorers by name, which jobs choose from, and the initial values of the rows that each one scores.

Nothing here imports torch: owners of parts initialise rows without it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.graph.documents import name_in
from penstock.registry import Registry
from penstock.store.initial_rows import InitialRows, chosen_rows, distance_rows, product_rows, unit_rows, usual_rows

SCORERS: Registry[Any] = Registry(
    "scorer",
    "penstock.scorers",
    {
        "dot": "penstock.nn.scorers.products:DotScorer",
        "distmult": "penstock.nn.scorers.products:DistMultScorer",
        "mlp": "penstock.nn.scorers.products:MLPScorer",
        "complex": "penstock.nn.scorers.products:ComplExScorer",
        "transe": "penstock.nn.scorers.distances:TransEScorer",
        "rotate": "penstock.nn.scorers.distances:RotatEScorer",
    },
    type,
)
"""The classes of scorers, modules with a class method `build(width, relations, settings)`."""

if TYPE_CHECKING:
    ScorerName = str
else:
    ScorerName = name_in(SCORERS, "auto")

_CHOSEN = {"edges": "dot", "triples": "complex"}
"""The scorer that `auto` selects, by what a task is about."""


def chosen_scorer(scorer: str, about: str) -> str:
    """The scorer that a job names, or the one that `auto` selects for a task about edges or triples."""
    return _CHOSEN[about] if scorer == "auto" else scorer


_BEGIN: dict[str | None, Callable[[int, float, int], InitialRows]] = {
    **dict.fromkeys(("auto", "dot", "distmult", "complex"), lambda width, margin, distance: product_rows()),
    "transe": lambda width, margin, distance: unit_rows(width) if distance == 2 else distance_rows(margin, width),
    "rotate": lambda width, margin, distance: distance_rows(margin, width // 2),
}
"""Initial values as the scorers' papers give them; rows of other scorers start as those that layers read."""


def initial_rows(
    init: str, scorer: str | None, count: int, width: int, margin: float = 9.0, distance: int = 1
) -> InitialRows:
    """The initial values of a table of vertices' rows under a job's `embedding_init`; `scorer` is None for layers'
    inputs.

    `auto` follows the scorer's paper.
    """
    auto = _BEGIN[scorer](width, margin, distance) if scorer in _BEGIN else usual_rows(width)
    return chosen_rows(init, auto, count, width)
