"""The synthetic data sets by name, with the statistics of the public sets they stand in for.

`ps.load("synthetic-arxiv")` makes one on first use and keeps it.
"""

import difflib
from pathlib import Path
from tempfile import TemporaryFile

from penstock.errors import PenstockError
from penstock.graph.cache_folder import cache_folder
from penstock.graph.generate.make import make_graph
from penstock.graph.generate.recipe import EdgeRecipe, NodeRecipe, Recipe
from penstock.graph.graph import Graph
from penstock.progress import SILENT, Progress

DEFAULT = "synthetic-arxiv"


def recipe_named(name: str) -> Recipe:
    """The recipe of a data set; an unknown name gets the nearest one suggested."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, 1, 0.4)
    hint = f"did you mean {near[0]!r}?" if near else "`penstock data list` shows what there is."
    raise PenstockError(f"There is no data set {name!r}: {hint}", code="unknown-name")


def _single(
    name: str,
    summary: str,
    nodes: int,
    features: int,
    classes: int,
    splits: tuple[int, int, int],
    edge: EdgeRecipe,
    separation: float = 2.6,
) -> Recipe:
    return Recipe(name, summary, {"node": NodeRecipe(nodes, features, splits)}, (edge,), classes, separation)


_LINK = ("node", "to", "node")

_RECIPES = (
    _single(
        "synthetic-arxiv",
        "citations like ogbn-arxiv; the built-in graph",
        169_343,
        128,
        40,
        (90_941, 29_799, 48_603),
        EdgeRecipe(_LINK, 1_166_243, degree_exponent=2.4, hub_bias=1.5),
    ),
    _single(
        "synthetic-products",
        "co-purchases like ogbn-products, both directions",
        2_449_029,
        100,
        47,
        (196_615, 39_323, 2_213_091),
        EdgeRecipe(_LINK, 123_718_280, symmetric=True, degree_exponent=2.6, hub_bias=2.0, max_degree=9_000),
        separation=2.2,
    ),
    _single(
        "synthetic-reddit",
        "dense post graph like Reddit, both directions",
        232_965,
        602,
        41,
        (153_431, 23_831, 55_703),
        EdgeRecipe(_LINK, 114_615_892, symmetric=True, degree_exponent=2.8, hub_bias=1.6, max_degree=12_000),
        separation=2.0,
    ),
    _single(
        "synthetic-papers",
        "citations like ogbn-papers100M, one direction; 1.4 % labelled",
        111_059_956,
        128,
        172,
        (1_207_179, 125_265, 214_338),
        EdgeRecipe(_LINK, 1_615_685_872, degree_exponent=2.3, hub_bias=1.5, max_degree=25_000),
        separation=2.4,
    ),
    Recipe(
        "synthetic-mag",
        "four types, four relations, like ogbn-mag; papers labelled",
        {
            "paper": NodeRecipe(736_389, 128, (629_571, 64_879, 41_939)),
            "author": NodeRecipe(1_134_649),
            "institution": NodeRecipe(8_740),
            "field_of_study": NodeRecipe(59_965),
        },
        (
            EdgeRecipe(("author", "affiliated_with", "institution"), 1_043_998, max_degree=30_000),
            EdgeRecipe(("author", "writes", "paper"), 7_145_660, degree_exponent=3.0),
            EdgeRecipe(("paper", "cites", "paper"), 5_416_271, hub_bias=1.5),
            EdgeRecipe(("paper", "has_topic", "field_of_study"), 7_505_078, max_degree=100_000),
        ),
        349,
        separation=1.8,
    ),
    Recipe(
        "synthetic-collab",
        "co-authorships like ogbl-collab; val and test edges held out",
        {"node": NodeRecipe(235_868, 128)},
        (
            EdgeRecipe(
                _LINK,
                2_570_930,
                symmetric=True,
                degree_exponent=2.5,
                hub_bias=2.0,
                held_out=(60_084 / 1_285_465, 46_329 / 1_285_465),
            ),
        ),
        40,
    ),
)

DATASETS: dict[str, Recipe] = {recipe.name: recipe for recipe in _RECIPES}


def make_cached(name: str, progress: Progress = SILENT) -> Graph:
    """The full-scale data set of that name, from the cache or made into it."""
    recipe = recipe_named(name)
    folder = cache_folder() / name
    try:
        return Graph.open(folder)
    except PenstockError:
        # Absent, or of an older format: either way it is ours to make again.
        _check_writable(folder)
        return make_graph(recipe, folder, force=True, progress=progress)


def _check_writable(folder: Path) -> None:
    """Refuse a cache that nothing can be written to, before a data set is made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder.parent).close()
    except OSError as error:
        raise PenstockError(
            f"{folder.name} is made once and kept in {folder.parent}, which cannot be written ({error.strerror}):"
            " set PENSTOCK_CACHE to a folder that can.",
            code="write-failed",
        ) from None
