"""From a recipe to a graph folder, block by block."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array, ArrayWriter, open_array, write_array
from penstock.graph.atomic import new_folder
from penstock.graph.blocks import default_threads, map_blocks
from penstock.graph.csr import index_dtype
from penstock.graph.data import SPLITS, EdgeSet, NodeSet
from penstock.graph.folder import (
    edges_folder,
    nodes_folder,
    write_document,
    write_held_out,
    write_splits,
)
from penstock.graph.generate.layout import VertexLayout, lay_out
from penstock.graph.generate.recipe import EdgeRecipe, Recipe
from penstock.graph.generate.rows import RowMaker, choice_of
from penstock.graph.generate.symmetry import merge_all, transposed
from penstock.graph.generate.vertices import VertexMaker
from penstock.graph.graph import Graph
from penstock.graph.hashing import below, document_key, draw
from penstock.kernels import njit
from penstock.progress import SILENT, Progress

_BLOCK = 1 << 15


def make_graph(
    recipe: Recipe,
    folder: Path,
    seed: int = 0,
    force: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Graph:
    """Write the graph of a recipe. The bytes depend on recipe and seed alone, not on `threads`."""
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
    recipe: Recipe, node_type: str, layout: VertexLayout, seed: int, folder: Path, threads: int, progress: Progress
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


def _origin(recipe: Recipe, seed: int) -> dict[str, object]:
    plain = asdict(replace(recipe, summary=""))
    return {
        "generator": recipe.name,
        "seed": seed,
        "recipe": {k: v for k, v in plain.items() if v not in ("", ())},
    }


_TRIES = 1000
"""Draws a pair before giving up: a graph so dense has too few pairs without an edge."""


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
