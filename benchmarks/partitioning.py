"""How good, how fast and how large are the cuts, beside pymetis on the same graph?

Makes `synthetic-products` with the asked number of vertices and measures every method in a process of its own,
pymetis's single-constraint `part_graph` among them.
Run: python benchmarks/partitioning.py [--nodes 500000] [--parts 4,8] [--methods metis,hypergraph] [--json-out
rows.json]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

METHODS = "random,stream,metis,metis+balanced,hypergraph,hypergraph+balanced"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--parts", default="4,8")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--json-out", type=Path)
    parser.add_argument("--pymetis", nargs=2, metavar=("GRAPH", "PARTS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pymetis:
        print(json.dumps(run_pymetis(args.pymetis[0], int(args.pymetis[1]))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        graph = str(Path(scratch) / "graph")
        made = penstock("data", "make", "synthetic-products", "--nodes", str(args.nodes), "--out", graph)
        print(f"{made['nodes']:,} vertices, {made['edges']:,} edges, made in {made['seconds']} s", flush=True)
        for parts in args.parts.split(","):
            rows.append(answer([sys.executable, __file__, "--pymetis", graph, parts]))
            for method in args.methods.split(","):
                found = penstock("partition", graph, "--parts", parts, "--compare", "--methods", method)
                rows.append(found["compare"][0])
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    Console(width=140).print(table(rows))
    if args.json_out:
        args.json_out.write_text(json.dumps(rows, indent=1) + "\n")


def run_pymetis(path: str, parts: int) -> dict[str, Any]:
    """pymetis as its users call it: one implicit constraint, the vertices."""
    import pymetis

    from penstock import Graph
    from penstock.cli.output import measured
    from penstock.partition import Cut, measure
    from penstock.partition.problem import constraints_of, default_names, undirected, whole_of

    whole = whole_of(Graph.open(path))
    adjacency = undirected(whole.indptr, whole.indices)
    with measured() as cost:
        _, assignment = pymetis.part_graph(parts, xadj=adjacency.indptr, adjncy=adjacency.indices)
    import numpy as np

    metrics = measure(whole, np.array(assignment, np.int32), parts, constraints_of(whole, default_names(whole)))
    how = {"method": "pymetis", "refine": None, "parts": Cut(parts).parts}
    return how | metrics.document() | cost.fields()


def penstock(*arguments: str) -> dict[str, Any]:
    """A command's JSON."""
    return answer([sys.executable, "-c", "from penstock.cli import main; main()", *arguments, "--json"])


def answer(command: list[str]) -> dict[str, Any]:
    """What a process prints, as JSON."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(rows: list[dict[str, Any]]) -> Table:
    """A row a run; volume and cut also relative to pymetis's."""
    quality = ("cut", "cut/pymetis", "volume", "vol/metis", "most sent", "most read", "balance")
    found = Table("parts", "method", *quality, "s", "MB")
    for row in rows:
        same = {r["method"] + (r["refine"] or ""): r for r in rows if r["parts"] == row["parts"]}
        versus = row["comm_volume"] / same["metis"]["comm_volume"] if "metis" in same else float("nan")
        found.add_row(
            str(row["parts"]),
            row["method"] + (f"+{row['refine']}" if row["refine"] else ""),
            f"{row['edge_cut_fraction']:.2%}",
            f"{row['edge_cut'] / same['pymetis']['edge_cut']:.3f}",
            f"{row['comm_volume']:,}",
            f"{versus:.3f}",
            f"{row['max_send']:,}",
            f"{row['max_recv']:,}",
            " ".join(f"{ratio:.3f}" for ratio in row["balance"].values()),
            f"{row['seconds']:.1f}",
            f"{row['peak_rss_mb']:,.0f}",
        )
    return found


if __name__ == "__main__":
    main()
