"""How does an epoch grow with a graph whose topology the GPU does not hold?

    python benchmarks/growth_gpu.py [--copies 1,2,4,8] [--scale 0.1] [--seconds 2] [--topology auto] [--out FILE]

synthetic-products is copied so many times, side by side in one graph with as many times the training vertices. The GPU
is given room for the training and about one copy's topology: with more copies the lists stay in pinned memory, from
which the GPU draws. `--topology pinned` leaves nothing to memory: the lists of several copies are pinned, and those
of one copy are on the GPU in the first line and pinned in the second. An epoch of n copies should take n times as long
as that of one (aim: at most 1.05 times that).
Every line is printed when it ends, and the file is written anew.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from first_layer_gpu import measured, session_of
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.generate import make_graph, recipe_named
from penstock.train.auto_values import with_order_costs
from penstock.train.job import make_job
from penstock.train.run_context import assumed_memory

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH = 1024


def copied(graph: Graph, copies: int) -> Graph:
    """The graph so many times, without edges between."""
    (node,), (edges,) = graph.nodes.values(), graph.edges.values()
    count = node.count
    fields = {name: np.concatenate([values] * copies) for name, values in node.fields.items()}
    train = np.concatenate([graph.split("train") + number * count for number in range(copies)])
    firsts = [edges.indptr[:-1] + number * edges.indptr[-1] for number in range(copies)]
    indptr = np.concatenate([*firsts, [copies * edges.indptr[-1]]])
    indices = np.concatenate([edges.indices + number * count for number in range(copies)])
    return Graph(
        {"node": NodeSet(copies * count, fields, {"train": train})},
        {("node", "to", "node"): EdgeSet(indptr, indices.astype(np.int32))},
        f"{copies} copies",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", default="1,2,4,8")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--topology", default="auto", choices=["auto", "pinned"], help="of several copies")
    parser.add_argument("--working-gb", type=float, default=3.0, help="of the GPU's memory, for the training")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/penstock-growth"), help="keeps the graph")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.folder / f"products-{args.scale:g}"
    if not (folder / "graph.json").exists():
        make_graph(recipe_named("synthetic-products").scaled(args.scale), folder)
    one, rows = Graph.open(folder), list[dict[str, Any]]()
    (edges,) = one.edges.values()
    room = int(args.working_gb * 1e9) + int(1.2 * (edges.indptr.nbytes + edges.indices.nbytes))
    counts = list(map(int, args.copies.split(",")))
    cases = [(number, args.topology) for number in counts]
    if args.topology == "pinned":
        cases = [(counts[0], "device"), *cases]
    for number, topology in cases:
        fields = {"fanouts": [15, 10], "batch_size": BATCH, "hidden": args.hidden, "device": DEVICE, "dropout": 0.0}
        fields |= {
            "epochs": 10_000,
            "evaluate_every": -1,
            "placement": {"features": "pinned", "topology": topology, "cache_rows": 0},
        }
        graph = copied(one, number)
        batches = -(-len(graph.split("train")) // BATCH)
        with assumed_memory(room), session_of(with_order_costs(make_job(fields)), graph) as session:
            rate, _, stages = measured(session, args.seconds, warm_seconds=2 * args.seconds)
            found = session.execution.facts().get("placement", {"topology": "host"})
        line = {"copies": number, "batches": batches, "batches_per_second": round(rate, 1), "stages": stages}
        line |= {"epoch_s": round(batches / rate, 3), "topology": found["topology"]}
        rows.append(line)
        line["of_one"] = round(line["epoch_s"] / (number / rows[0]["copies"] * rows[0]["epoch_s"]), 3)
        print(json.dumps(line), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"benchmark": "growth", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
