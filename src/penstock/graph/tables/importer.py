"""From a spec to a graph folder."""

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, open_array, release_pages
from penstock.graph.blocks import map_blocks
from penstock.graph.data import EdgeSet
from penstock.graph.files import new_folder
from penstock.graph.folder import edges_folder, nodes_folder, write_document
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key, file_name
from penstock.graph.tables.columns import standardised
from penstock.graph.tables.edges import EdgeTable, Spool, write_lists, write_relations
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.spec import Spec, read_spec
from penstock.progress import SILENT, Progress


def import_tables(spec_path: str | Path, out: str | Path, force: bool = False, progress: Progress = SILENT) -> Graph:
    """Build a graph folder from the tables a spec describes, and open it.

    Files are streamed: memory holds the ids, the lists of one edge type, and a few blocks of rows.
    """
    spec_path = Path(spec_path)
    spec = read_spec(spec_path)
    with new_folder(Path(out), force) as folder:
        try:
            _build(spec, spec_path.parent, folder, progress)
        except pa.ArrowException as error:
            problem = str(error).split("\n")[0].rstrip(".")
            raise PenstockError(
                f"A column of {spec_path}'s tables cannot be read as asked ({problem}).", code="wrong-type"
            ) from error
    return Graph.open(out)


def _build(spec: Spec, tables: Path, folder: Path, progress: Progress) -> None:
    nodes = {node_spec.type: NodeTable(node_spec, tables) for node_spec in spec.nodes}
    edges = [
        EdgeTable(edge_spec, tables, nodes[edge_spec.type[0]], nodes[edge_spec.type[2]]) for edge_spec in spec.edges
    ]
    with ExitStack() as stack:
        for table in nodes.values():
            table.number(progress)
        # Vertices that only edges name come last, so the field files stay open until all edges are read.
        writers = {name: table.write(nodes_folder(folder, name), stack, progress) for name, table in nodes.items()}
        spools = [table.spool(folder / "spool" / str(place), progress) for place, table in enumerate(edges)]
        node_sets = {name: table.finish(writers[name], nodes_folder(folder, name)) for name, table in nodes.items()}
    edge_sets: dict[EdgeType, EdgeSet] = {}
    for spool in spools:
        made = (
            _sort(spool, folder, progress) if spool.spec.relation is None else write_relations(spool, folder, progress)
        )
        if twice := sorted(map(edge_key, set(made) & set(edge_sets))):
            raise PenstockError(
                f"Edge type {twice[0]} comes from two tables: give its edges in one, or rename a relation.",
                code="duplicate",
            )
        edge_sets |= made
    shutil.rmtree(folder / "spool", ignore_errors=True)
    write_document(Graph(node_sets, edge_sets, spec.name, folder, _origin(spec, nodes, edges)), folder)


def _sort(spool: Spool, folder: Path, progress: Progress) -> dict[EdgeType, EdgeSet]:
    """The lists of an edge type, and of its reverse where that is wanted."""
    spec, key = spool.spec, edge_key(spool.spec.type)
    made: dict[EdgeType, EdgeSet] = {}
    with progress.step(f"{key}: lists", spool.sources.rows, "edges"):
        made[spec.type] = _write_spool(spool, edges_folder(folder, spec.type))
        progress.advance(spool.sources.rows)
    if spec.reverse_type:
        with progress.step(f"{key}: reverse lists", spool.sources.rows, "edges"):
            made[spec.reverse_type] = _write_spool(spool, edges_folder(folder, spec.reverse_type), backwards=True)
            progress.advance(spool.sources.rows)
    shutil.rmtree(spool.folder, ignore_errors=True)
    return made


def _origin(spec: Spec, nodes: dict[str, NodeTable], edges: list[EdgeTable]) -> dict[str, Any]:
    """The origin that the graph records; only what applies is included."""
    tables = nodes | {table.key: table for table in edges}
    happened: dict[str, dict[str, Any]] = {
        "standardised": {name: standardised(table.fields) for name, table in tables.items()},
        "created": {name: table.count - table.table_rows for name, table in nodes.items() if table.table},
        "dropped": {table.key: table.dropped for table in edges},
    }
    return {"spec": spec.name} | {
        what: {name: value for name, value in values.items() if value}
        for what, values in happened.items()
        if any(values.values())
    }


_BLOCK_BYTES = 8 << 20


def _write_spool(spool: Spool, target: Path, backwards: bool = False) -> EdgeSet:
    """The edges of a spool sorted into lists; backwards: each the other way round, and nothing held out."""
    ends = open_array(spool.sources.path), open_array(spool.destinations.path)
    counts = spool.ends[0].count, spool.ends[1].count
    held_out = {name: open_array(writer.path) for name, writer in spool.held_out.items()}
    if backwards:
        ends, counts, held_out = ends[::-1], counts[::-1], {}
    fields = spool.fields.finish()
    made, order = write_lists(ends, counts, spool.spec.deduplicate, held_out, target, bool(fields))
    if order is not None:
        if spool.rows is not None:
            order = open_array(spool.rows.path)[order]
        fields = {name: _reordered(name, values, order, target) for name, values in fields.items()}
    return replace(made, fields=fields, categories=spool.fields.categories())


def _reordered(name: str, values: Array, order: Array, target: Path) -> Array:
    """A field's rows in the order of the lists, gathered block by block."""
    path = target / f"field.{file_name(name)}.npy"
    block_rows = max(1, _BLOCK_BYTES // max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))))

    def gather(start: int, stop: int) -> Array:
        rows: Array = np.take(values, order[start:stop], axis=0)
        return rows

    with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
        for block in map_blocks(gather, len(order), block_rows):
            writer.append(block)
    release_pages(values)
    return open_array(path)
