"""From a recipe, or the name of a synthetic data set, to a graph folder, block by block."""

import difflib
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from penstock.cache_folders import cache_folder
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, index_dtype, open_array, write_array
from penstock.graph.data import SPLITS, EdgeSet, NodeSet
from penstock.graph.folder import (
    Graph,
    edges_folder,
    nodes_folder,
    write_document,
    write_held_out,
    write_splits,
)
from penstock.graph.generate.edges import RowMaker, choice_of, merge_all, transposed
from penstock.graph.generate.recipe import EdgeRecipe, GraphRecipe, NodeRecipe
from penstock.graph.generate.vertices import VertexLayout, VertexMaker, lay_out
from penstock.graph.hashing import below, document_key, draw
from penstock.graph.new_folders import new_folder
from penstock.kernels import njit
from penstock.processes import default_threads, map_blocks
from penstock.progress import SILENT, Progress

_BLOCK = 1 << 15


def make_graph(
    recipe: GraphRecipe,
    folder: Path,
    seed: int = 0,
    force: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Graph:
    """Write the graph of a recipe. The bytes depend only on recipe and seed, not on `threads`."""
    threads = threads or default_threads()
    with new_folder(folder, force) as temporary:
        layouts = {name: lay_out(recipe, name, seed) for name in recipe.nodes}
        nodes = {
            name: _make_nodes(recipe, name, layouts[name], seed, nodes_folder(temporary, name), threads, progress)
            for name in recipe.nodes
        }
        edges = {}
        for edge in recipe.edges:
            target = edges_folder(temporary, edge.type)
            edges[edge.type] = _make_edges(edge, layouts, seed, target, threads, progress)
        write_document(Graph(nodes, edges, recipe.name, None, _origin(recipe, seed)), temporary)
    return Graph.open(folder)


def _make_nodes(
    recipe: GraphRecipe, node_type: str, layout: VertexLayout, seed: int, folder: Path, threads: int, progress: Progress
) -> NodeSet:
    node, maker = recipe.nodes[node_type], VertexMaker(recipe, node_type, layout, seed)
    if not node.features and node.splits is None:
        return NodeSet(node.count)
    folder.mkdir(parents=True)
    writers: dict[str, ArrayWriter] = {}
    if node.features:
        writers["x"] = ArrayWriter(folder / "field.x.npy", recipe.feature_dtype, (node.features,))
    if node.splits is not None:
        writers["y"] = ArrayWriter(folder / "field.y.npy", np.int64)
    members: dict[str, list[Array]] = {name: [] for name in SPLITS}
    start = 0
    with progress.step(f"vertices {node_type}", node.count, "vertices"):
        for block in map_blocks(maker.block, node.count, _BLOCK, threads):
            for name, writer in writers.items():
                writer.append(getattr(block, name))
            if block.order is not None:
                _collect_splits(block.order, start, node.splits, members)
            start += block.rows
            progress.advance(block.rows)
    for writer in writers.values():
        writer.close()
    splits = {} if node.splits is None else {name: np.concatenate(rows) for name, rows in members.items()}
    write_splits(splits, folder)
    fields = {name: open_array(writer.path) for name, writer in writers.items()}
    return NodeSet(node.count, fields, splits)


def _collect_splits(
    order: Array, start: int, sizes: tuple[int, int, int] | None, members: dict[str, list[Array]]
) -> None:
    assert sizes is not None
    low = 0
    for name, size in zip(SPLITS, sizes, strict=True):
        members[name].append(start + np.flatnonzero((order >= low) & (order < low + size)))
        low += size


def _make_edges(
    recipe: EdgeRecipe, layouts: dict[str, VertexLayout], seed: int, folder: Path, threads: int, progress: Progress
) -> EdgeSet:
    source, target = layouts[recipe.type[0]], layouts[recipe.type[2]]
    dtype = index_dtype(source.size)
    maker = RowMaker(choice_of(recipe, target, seed, threads), target, source, dtype)
    lengths = []
    with (
        progress.step(f"edges {'__'.join(recipe.type)}", recipe.count // (1 + recipe.symmetric), "edges"),
        ArrayWriter(folder / "indices.npy", dtype) as writer,
    ):
        for row_lengths, neighbours in map_blocks(maker.block, target.size, _BLOCK, threads):
            writer.append(neighbours)
            lengths.append(row_lengths)
            progress.advance(len(neighbours))
    indptr = _offsets(lengths)
    held: dict[str, Array] = {}
    if recipe.symmetric:
        indptr, held = _symmetrise(recipe, indptr, folder, seed, threads, progress)
    write_array(folder / "indptr.npy", indptr)
    indices = open_array(folder / "indices.npy")
    if held:
        held |= unlinked_pairs(indptr, indices, held, seed)
    write_held_out(held, folder)
    return EdgeSet(indptr, indices, held_out=held)


def _symmetrise(
    recipe: EdgeRecipe, indptr: Array, folder: Path, seed: int, threads: int, progress: Progress
) -> tuple[Array, dict[str, Array]]:
    """Replace the drawn lists in `folder` by the union of both directions."""
    drawn = (folder / "indices.npy").rename(folder / "drawn.npy")
    half = (indptr, open_array(drawn))
    with progress.step("opposite directions"):
        other = transposed(*half, threads)
    lengths, held = [], []
    key = document_key(seed, "held out of {}", "__".join(recipe.type))
    with (
        progress.step("both directions", len(indptr) - 1, "vertices"),
        ArrayWriter(folder / "indices.npy", half[1].dtype) as writer,
    ):
        for row_lengths, neighbours, kept_out in merge_all(half, other, key, recipe.held_out, threads):
            writer.append(neighbours)
            lengths.append(row_lengths)
            held.append(kept_out)
            progress.advance(len(row_lengths))
    drawn.unlink()
    if not sum(recipe.held_out):
        return _offsets(lengths), {}
    pairs = np.concatenate(held)
    named = {name: np.ascontiguousarray(pairs[pairs[:, 2] == i, :2]) for i, name in enumerate(("val", "test"))}
    return _offsets(lengths), named


def _offsets(lengths: list[Array]) -> Array:
    indptr = np.zeros(sum(len(block) for block in lengths) + 1, np.int64)
    np.cumsum(np.concatenate(lengths), out=indptr[1:])
    return indptr


def _origin(recipe: GraphRecipe, seed: int) -> dict[str, object]:
    plain = asdict(replace(recipe, summary=""))
    return {
        "generator": recipe.name,
        "seed": seed,
        "recipe": {k: v for k, v in plain.items() if v not in ("", ())},
    }


_TRIES = 1000
"""Draws of a pair before giving up: a dense graph has too few pairs without an edge."""


def unlinked_pairs(indptr: Array, indices: Array, held_out: dict[str, Array], seed: int) -> dict[str, Array]:
    """`<name>_negative`: uniform pairs that are neither edges nor held out, as many as each held-out set has."""
    count = len(indptr) - 1
    pairs = np.concatenate(list(held_out.values()))
    kept_out = np.unique(np.concatenate([pairs[:, 0] * count + pairs[:, 1], pairs[:, 1] * count + pairs[:, 0]]))
    found = {}
    for name, positives in held_out.items():
        out = np.empty((len(positives), 2), np.int64)
        drawn = _draw_pairs(document_key(seed, "negatives {}", name), indptr, indices, kept_out, out)
        found[f"{name}_negative"] = out[:drawn]
    return found


@njit(nogil=True, cache=True)
def _draw_pairs(key: np.uint64, indptr: Array, indices: Array, kept_out: Array, out: Array) -> int:
    count = indptr.shape[0] - 1
    drawn = counter = 0
    while drawn < out.shape[0] and counter < 2 * _TRIES * out.shape[0]:
        source = below(draw(key, np.uint64(counter)), count)
        target = below(draw(key, np.uint64(counter + 1)), count)
        counter += 2
        low, high = indptr[target], indptr[target + 1]
        place = low + np.searchsorted(indices[low:high], source)
        linked = place < high and indices[place] == source
        name = np.searchsorted(kept_out, source * count + target)
        held = name < kept_out.shape[0] and kept_out[name] == source * count + target
        if source != target and not linked and not held:
            out[drawn, 0], out[drawn, 1] = source, target
            drawn += 1
    return drawn


# The synthetic data sets by name, with the statistics of the public sets they imitate. `ps.load("synthetic-arxiv")`
# makes one on first use and keeps it.

DEFAULT = "synthetic-arxiv"


def recipe_named(name: str) -> GraphRecipe:
    """The recipe of a data set; for an unknown name the error suggests the nearest."""
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
) -> GraphRecipe:
    return GraphRecipe(name, summary, {"node": NodeRecipe(nodes, features, splits)}, (edge,), classes, separation)


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
    GraphRecipe(
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
    GraphRecipe(
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

DATASETS: dict[str, GraphRecipe] = {recipe.name: recipe for recipe in _RECIPES}


def make_cached(name: str, progress: Progress = SILENT) -> Graph:
    """The full-scale data set of that name, from the cache or made into it."""
    recipe = recipe_named(name)
    folder = cache_folder() / name
    try:
        return Graph.open(folder)
    except PenstockError:
        # Absent, or of an older format: it is made again.
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
