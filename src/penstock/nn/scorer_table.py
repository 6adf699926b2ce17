"""The names of all scorers, where each one's class is defined, and how embeddings are initialised for it.

Nothing here imports torch: owners of parts initialise rows without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from penstock.graph.documents import or_plugin
from penstock.imports import load_plugin
from penstock.store.initial_rows import InitialRows, chosen_rows, usual_rows

SCORERS = {
    "dot": "penstock.nn.scorers.products:DotScorer",
    "distmult": "penstock.nn.scorers.products:DistMultScorer",
    "mlp": "penstock.nn.scorers.products:MLPScorer",
    "complex": "penstock.nn.scorers.products:ComplExScorer",
    "transe": "penstock.nn.scorers.distances:TransEScorer",
    "rotate": "penstock.nn.scorers.distances:RotatEScorer",
}
"""For each scorer, the module and the name of its class. Modules are imported when their scorer is used."""
PLUGINS = "penstock.scorers"
"""The entry-point group by which packages add scorers."""

if TYPE_CHECKING:
    ScorerName = str
else:
    ScorerName = Annotated[Literal[("auto", *SCORERS)], or_plugin(PLUGINS)]


def scorer_class(name: str) -> Any:
    """The class of a scorer, which may be a plug-in's."""
    if name not in SCORERS:
        return load_plugin(PLUGINS, name, type)
    module, _, attribute = SCORERS[name].partition(":")
    return getattr(import_module(module), attribute)


def initial_rows(
    init: str, scorer: str | None, count: int, width: int, margin: float = 9.0, distance: int = 1
) -> InitialRows:
    """The initial values of a table of vertices' rows under a job's `embedding_init`; `scorer`: None where layers read
    it.

    `auto` follows the scorer's authors. Rows for products are N(0, 0.1). Those for distances are uniform, so that the
    distance of two random rows is about the margin (Sun et al., 2019), or so that rows have a length of about 1 where
    TransE uses the Euclidean norm (Bordes et al., 2013).
    """
    if scorer in ("auto", "dot", "distmult", "complex"):
        auto = InitialRows("normal", 0.1)
    elif scorer == "transe" and distance == 2:
        auto = InitialRows("uniform", (3 / width) ** 0.5)
    elif scorer in ("transe", "rotate"):
        auto = InitialRows("uniform", (margin + 2) / (width // 2 if scorer == "rotate" else width))
    else:
        auto = usual_rows(width)
    return chosen_rows(init, auto, count, width)
