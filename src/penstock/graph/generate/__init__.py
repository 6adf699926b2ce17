"""Synthetic graphs: recipes with the statistics of public sets, made deterministically in blocks.

`recipe` describes a graph; `vertices` and `edges` draw it; `make` writes it, and has the recipes of named data sets.
"""

from penstock.graph.generate.make import DATASETS, DEFAULT, make_cached, make_graph, recipe_named
from penstock.graph.generate.recipe import EdgeRecipe, GraphRecipe, NodeRecipe

__all__ = [
    "DATASETS",
    "DEFAULT",
    "EdgeRecipe",
    "GraphRecipe",
    "NodeRecipe",
    "make_cached",
    "make_graph",
    "recipe_named",
]
