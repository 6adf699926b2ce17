"""How even are compute and exchanged rows among workers by how a graph is cut, and what does that do to a step?

For refined METIS, METIS, chunk and random cuts of real and synthetic graphs: the largest over the mean of what workers
compute and of the rows that they read or send (whichever is more), all rows that travel in a pass as a share of the
vertices, and a simulated step of GraphSAGE (2 layers, 16 columns, 100 inputs) on the source's hardware, with bins
that cost nothing by themselves, as a multiple of that of the refined cut.
Run: python benchmarks/whole_graph_balance.py [--data ../shared/data] [--graphs com-dblp,products] [--workers 4,16]
[--edges 1000000] [--json]
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.plan.workloads.whole_section import layer_costs
from products_graph import show
from whole_graph_cases import MODELS, Cuts, Exchange, predicted, profile_of
from whole_graph_simulated import SHAPES, small_graph

METHODS = ("metis+balanced", "metis", "chunk", "random")
REAL = ("amazon-photo", "facebook-pagepage", "coauthor-cs", "soc-slashdot0902", "com-dblp")
OURS, LAYER = Exchange("bins", "both", 8, "hermod"), Exchange("layer", "none", 1, "fair")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--graphs", default=",".join([*REAL, "products", "papers"]))
    parser.add_argument("--workers", default="4,16")
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for name, graph in graphs(args.graphs.split(","), args.data, args.edges):
        cuts = Cuts(graph)
        for workers in map(int, args.workers.split(",")):
            rows += [{"graph": name, "workers": workers} | row for row in compared(cuts, workers)]
    show("balance of whole-graph training, by how the graph is cut", rows, args.json)


def graphs(names: list[str], data: Path, edges: int) -> Iterator[tuple[str, Graph]]:
    """Real graphs of the folder that has them, and small synthetic ones with the source's shapes."""
    for name in names:
        if name in SHAPES:
            with tempfile.TemporaryDirectory() as scratch:
                yield f"synthetic {name}", small_graph(SHAPES[name], edges, Path(scratch) / "graph")
        elif (data / f"{name}.npz").exists():
            yield name, load(data / f"{name}.npz")
        else:
            print(f"{data / name}.npz is not there: left out.")


def compared(cuts: Cuts, workers: int) -> list[dict[str, Any]]:
    """One row for each way of cutting."""
    profile = profile_of(MODELS[0], 100, 47, fixed=0.0)
    lines = [line for cost in layer_costs(profile, "cpu") for line in (cost.forward, cost.backward)]
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        layer = cuts.counts(method, workers, 1, eager=False).layers[0]
        work = list(zip(layer.rows[:, 0].tolist(), layer.edges[:, 0].tolist(), strict=True))
        compute = np.array([sum(line.seconds(*each) for line in lines) for each in work])
        sent = layer.sent.sum(1)
        exchanged = np.maximum(sent.sum(0), sent.sum(1))
        seconds = [predicted(cuts, method, workers, profile, how).iteration_s for how in (OURS, LAYER)]
        rows.append(
            {
                "cut": method,
                "compute": compute.max() / compute.mean(),
                "exchanged": exchanged.max() / max(exchanged.mean(), 1e-9),
                "rows": float(sent.sum() / cuts.whole.count),
                "step ms": seconds[0] * 1e3,
                "step": seconds[0] / (rows[0]["step ms"] / 1e3 if rows else seconds[0]),
                "layer": seconds[1] / seconds[0],
            }
        )
    return rows


if __name__ == "__main__":
    main()
