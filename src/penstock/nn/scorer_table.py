"""The names of all scorers, which jobs choose from, and where each one's class is defined."""

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from penstock.graph.documents import or_plugin
from penstock.plugins import load_plugin

SCORERS = {
    "dot": "penstock.nn.scorers.pairs:DotScorer",
    "distmult": "penstock.nn.scorers.products:DistMultScorer",
    "mlp": "penstock.nn.scorers.pairs:MLPScorer",
    "complex": "penstock.nn.scorers.products:ComplExScorer",
    "transe": "penstock.nn.scorers.distances:TransEScorer",
    "rotate": "penstock.nn.scorers.distances:RotatEScorer",
}
"""For each scorer, the module and the name of its class. Modules are imported when their scorer is asked for."""
PLUGINS = "penstock.scorers"
"""The group of entry points by which packages offer further ones."""

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
