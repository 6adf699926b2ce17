"""From a spec to a graph folder."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.atomic import new_folder
from penstock.graph.data import EdgeSet
from penstock.graph.folder import edges_folder, nodes_folder, write_document
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.graph.tables.edges import EdgeTable
from penstock.graph.tables.features import standardised
from penstock.graph.tables.lists import write_lists
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.spec import Spec, read_spec
from penstock.graph.tables.spool import Spool
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
        edge_sets |= _sort(spool, folder, progress)
    shutil.rmtree(folder / "spool", ignore_errors=True)
    write_document(Graph(node_sets, edge_sets, spec.name, folder, _origin(spec, nodes, edges)), folder)


def _sort(spool: Spool, folder: Path, progress: Progress) -> dict[EdgeType, EdgeSet]:
    """The lists of an edge type, and of its reverse where that is wanted."""
    spec, key = spool.spec, edge_key(spool.spec.type)
    made: dict[EdgeType, EdgeSet] = {}
    with progress.step(f"{key}: lists", spool.sources.rows, "edges"):
        made[spec.type] = write_lists(spool, edges_folder(folder, spec.type))
        progress.advance(spool.sources.rows)
    if spec.reverse_type:
        with progress.step(f"{key}: reverse lists", spool.sources.rows, "edges"):
            made[spec.reverse_type] = write_lists(spool, edges_folder(folder, spec.reverse_type), backwards=True)
            progress.advance(spool.sources.rows)
    shutil.rmtree(spool.folder, ignore_errors=True)
    return made


def _origin(spec: Spec, nodes: dict[str, NodeTable], edges: list[EdgeTable]) -> dict[str, Any]:
    """What the graph says of where it came from; only what happened is mentioned."""
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
