"""What do appending a segment and embedding what it changed take, beside an import and an embedding of everything?

    python benchmarks/growing.py --nodes 300000 --json-out growing.json

A graph like ogbn-arxiv grows ten times by 1 % of its first vertices, with edges to all that were there: one way (new
papers cite old ones) and both ways. Each time the new tables are appended and the embeddings of a trained model are
brought up to date; some times everything is imported and embedded too, and both are compared. Seconds are of work in
one process whose kernels are compiled, without start-up; processor seconds of all its threads are beside them.
"""

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rich.console import Console
from rich.table import Table

from penstock.api import train
from penstock.graph import Graph
from penstock.graph.generate import make_graph, recipe_named
from penstock.graph.tables import append_tables, import_tables
from penstock.train.run_files.run_folder import read_vectors
from penstock.train.use import embed_changes, embed_run

STEPS = 10
JOB = {"model": "sage", "hidden": 64, "fanouts": [10, 10, 5], "batch_size": 1024, "epochs": 1, "evaluate_every": -1}


def main() -> None:
    """Grow graphs of both kinds, print and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--whole", type=int, nargs="*", default=[1, 5, 10], help="steps with everything beside")
    parser.add_argument("--json-out", type=Path)
    options = parser.parse_args()
    rows = []
    for both in (False, True):
        with tempfile.TemporaryDirectory() as name:
            rows += _grow(Path(name), options.nodes, both, options.whole)
    table = Table(
        "edges", "step", "append", "embed changes", "changed", "import all", "embed all", "largest difference"
    )
    for row in rows:
        times = [_seconds(row[name]) for name in ("append", "changes")]
        whole = [_seconds(row.get(name)) for name in ("import", "embed")]
        differs = "" if "difference" not in row else f"{row['difference']:.1e}"
        table.add_row(row["edges"], str(row["step"]), *times, f"{row['changed']:.1%}", *whole, differs)
    Console().print(table)
    if options.json_out:
        options.json_out.write_text(json.dumps(rows, indent=1))


def _seconds(measured: tuple[float, float] | None) -> str:
    return "" if measured is None else f"{measured[0]:.2f} ({measured[1]:.2f})"


def _grow(folder: Path, nodes: int, both: bool, whole: list[int]) -> list[dict[str, Any]]:
    _write_tables(folder, nodes, both)
    graph = import_tables(folder / "0.yaml", folder / "graph")
    run = train(graph, **JOB, run=folder / "run")
    kept, rows = folder / "kept.parquet", []
    embed_run(run.path, kept)
    for step in range(1, STEPS + 1):
        append, segment = _timed(lambda step=step: append_tables(folder / "graph", folder / f"{step}.yaml"))
        changes, (count, computed) = _timed(lambda name=segment.name: embed_changes(run.path, kept, name))
        row = {"edges": "both ways" if both else "one way", "step": step, "append": append, "changes": changes}
        row["changed"] = computed / count
        if step in whole:
            row |= _everything(folder, run.path, kept, step)
        rows.append(row)
        print(row, flush=True)
    return rows


def _everything(folder: Path, run: Path, kept: Path, step: int) -> dict[str, Any]:
    """An import and an embedding of all that there is after a step, beside the graph and the table that have grown."""
    imported, graph = _timed(lambda: import_tables(folder / f"until-{step}.yaml", folder / "whole", force=True))
    embedded, _ = _timed(lambda: embed_run(run, folder / "all.parquet", force=True, graph=graph))
    grown = Graph.open(folder / "graph")
    for (name, ours), (_, theirs) in zip(grown.arrays(), graph.arrays(), strict=True):
        np.testing.assert_array_equal(ours, theirs, name)
    ours, theirs = (read_vectors(each, "embedding")[1] for each in (kept, folder / "all.parquet"))
    return {"import": imported, "embed": embedded, "difference": float(np.abs(ours - theirs).max())}


def _timed(work: Any) -> tuple[tuple[float, float], Any]:
    """Seconds and processor seconds of some work, and what it gives."""
    began, spent = time.perf_counter(), time.process_time()
    found = work()
    return (time.perf_counter() - began, time.process_time() - spent), found


def _write_tables(folder: Path, nodes: int, both: bool) -> None:
    """The tables and specs of each step, and of all until each."""
    recipe = recipe_named("synthetic-arxiv")
    made = make_graph(recipe.scaled(nodes / sum(each.count for each in recipe.nodes.values())), folder / "made")
    (node,), (lists,) = made.nodes.values(), made.edges.values()
    first = int(node.count / (1 + STEPS / 100))
    bounds = [0, *np.linspace(first, node.count, STEPS + 1).astype(np.int64).tolist()]
    ends = lists.edge_index().astype(np.int64)
    # A new paper cites old ones.
    ends = np.stack([ends.min(0), ends.max(0)])
    ids = np.array([f"paper-{number}" for number in range(node.count)])
    fold = np.full(node.count, "", dtype="<U5")
    for name, rows in node.splits.items():
        fold[rows] = name
    if both:
        ends = np.concatenate([ends, ends[::-1]], axis=1)
    arrives = ends.max(0)
    for step, (start, stop) in enumerate(pairwise(bounds)):
        x = pa.FixedSizeListArray.from_arrays(
            pa.array(np.ascontiguousarray(node.x[start:stop]).ravel()), node.x.shape[1]
        )
        columns = {"id": pa.array(ids[start:stop]), "x": x, "y": pa.array(node.y[start:stop])}
        pq.write_table(pa.table({**columns, "fold": pa.array(fold[start:stop])}), folder / f"papers-{step}.parquet")
        pairs = ends[:, (arrives >= start) & (arrives < stop)]
        cites = {name: pa.array(ids[rows]) for name, rows in zip(("s", "d"), pairs, strict=True)}
        pq.write_table(pa.table(cites), folder / f"cites-{step}.parquet")
        _write_spec(folder / f"{step}.yaml", [step])
        _write_spec(folder / f"until-{step}.yaml", list(range(step + 1)))


def _write_spec(path: Path, steps: list[int]) -> None:
    papers = {"type": "paper", "files": [f"papers-{step}.parquet" for step in steps], "id": "id", "features": ["x"]}
    cites = {"type": ["paper", "cites", "paper"], "files": [f"cites-{step}.parquet" for step in steps]}
    spec = {
        "nodes": [{**papers, "label": "y", "split": {"column": "fold"}}],
        "edges": [{**cites, "source": "s", "destination": "d"}],
    }
    path.write_text(yaml.safe_dump(spec))


if __name__ == "__main__":
    main()
