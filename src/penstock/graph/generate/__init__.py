"""Synthetic graphs: recipes with the statistics of public sets, made deterministically in blocks.

`recipe` and `presets` say what; `layout`, `rows`, `symmetry`, `vertices` draw it; `make` writes it.
"""

from penstock.graph.generate.make import DATASETS, DEFAULT, make_cached, make_graph, recipe_named
from penstock.graph.generate.recipe import EdgeRecipe, NodeRecipe, Recipe

__all__ = [
    "DATASETS",
    "DEFAULT",
    "EdgeRecipe",
    "NodeRecipe",
    "Recipe",
    "make_cached",
    "make_graph",
    "recipe_named",
]
