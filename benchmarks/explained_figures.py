"""Bytes of rows that an epoch brings between machines, for every way to cut a graph, width, depth and setting.

The cases of the source's Figures 3.8 (partitioning methods), 3.9 (32 to 1,024 columns, 2 to 4 layers) and 3.10 (the
share of columns that is sent, the bias against remote draws). Batches are drawn with the samplers' own code from the
whole graph and shared among the workers of a cut (`penstock.plan.changes`), and different remote rows are counted:
no run is started, so that a busy machine does not matter. Sampler explained draws with all remote vertices alike, as
before an explanation; runs count 1 to 3 % fewer rows (docs/measurements.md). Rows count as float32 without headers;
`lists_mb` are lists as they travel.
Run: python benchmarks/explained_figures.py [--data ../shared/data] [--graphs amazon-photo cora] [--parts 4]
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from explained import DATA
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.partition.assignment import cut_into
from penstock.plan.changes import CountedBatches, RemoteReads
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.dataset.prepared_graph import choose_task, open_data
from penstock.train.job import make_job

METHODS = ["metis", "hypergraph", "stream", "chunk", "random"]
WIDTHS = [32, 128, 512, 1024]
DEPTHS = [2, 3, 4]
SHARES = [1.0, 0.85, 0.7, 0.5]
BIASES = [0.0, 0.05, 0.1, 0.2]
SHARE, BIAS = 0.85, 0.1
"""Of sampler explained, as they are by default."""


def main() -> None:
    args = _options()
    for name in args.graphs:
        graph, width = loaded(args.data / f"{name}.npz")
        for row in figures(args, graph, width):
            print(json.dumps({"graph": name, **row}), flush=True)


def loaded(path: Path) -> tuple[Graph, int]:
    """A graph whose training vertices are those that a job would have, and how wide its rows are."""
    job = make_job({"graph": str(path)})
    graph = open_data(job)
    (nodes,) = graph.nodes.values()
    nodes.splits["train"] = np.asarray(labelled_vertices(graph, job, choose_task(graph, job)).splits["train"])
    return graph, int(nodes.fields["x"].shape[1])


def figures(args: argparse.Namespace, graph: Graph, width: int) -> Iterator[dict[str, Any]]:
    """The rows of all figures, one after the other."""
    metis = cut_into(graph, args.parts, "metis")
    for method in args.methods:
        part_of = metis if method == "metis" else cut_into(graph, args.parts, method)
        yield {"figure": "3.8", "method": method, **compared(args, graph, part_of, 2, width)}
    for depth in DEPTHS:
        for columns in WIDTHS:
            yield {"figure": "3.9", "layers": depth, "columns": columns, **compared(args, graph, metis, depth, columns)}
    batches = counted(args, graph, metis, 2, "neighbour")
    before = batches.plain(0.0).rows
    for bias in BIASES:
        left = batches.explained(bias).rows / before
        yield {
            "figure": "3.10",
            "bias": bias,
            **{
                f"rows_percent_share_{share:g}": round(100 * (left * kept(width, share) / width - 1), 1)
                for share in SHARES
            },
        }


def compared(args: argparse.Namespace, graph: Graph, part_of: Array, depth: int, width: int) -> dict[str, Any]:
    """MB of rows of an epoch with each sampler, and its change against the plain one."""
    plain = counted(args, graph, part_of, depth, "neighbour")
    epoch = -(-len(next(iter(graph.nodes.values())).splits["train"]) // args.batch) / 1e6
    found = {name: counted(args, graph, part_of, depth, name).plain(0.0).rows for name in ("fastgcn", "ladies")}
    before, chosen = plain.plain(0.0), plain.explained(BIAS)
    sent = {"plain": 4 * width * before.rows, "explained": 4 * kept(width, SHARE) * chosen.rows}
    sent |= {"int8": (width + 4) * before.rows, **{name: 4 * width * rows for name, rows in found.items()}}
    row: dict[str, Any] = {f"{name}_mb": round(epoch * size, 3) for name, size in sent.items()}
    row |= {f"{name}_percent": round(100 * (sent[name] / sent["plain"] - 1), 1) for name in list(sent)[1:]}
    row |= {"lists_mb": round(epoch * listed(before, 0), 3), "explained_lists_mb": round(epoch * listed(chosen, 1), 3)}
    return row


def counted(args: argparse.Namespace, graph: Graph, part_of: Array, depth: int, sampler: str) -> CountedBatches:
    """The batches of one sampler, whose workers are one for each part."""
    size = args.batch * args.fanout if sampler in ("fastgcn", "ladies") else args.fanout
    job = {"sampler": sampler, "batch_size": args.batch, "layers": depth, "fanouts": [size] * depth}
    return CountedBatches(graph, job, part_of, range(args.parts))


def kept(width: int, share: float) -> int:
    """Columns that are sent."""
    return math.ceil(share * width - 1e-9)


def listed(reads: RemoteReads, weighted: int) -> float:
    """Bytes of lists: a length, and 4 for each edge; where weighted, 4 more, and whole lengths of the last hop's."""
    return reads.lists + 4 * (1 + weighted) * reads.edges + 4 * weighted * reads.readers


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--graphs", nargs="+", default=["amazon-photo", "cora"])
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--fanout", type=int, default=5, help="of every hop")
    parser.add_argument("--batch", type=int, default=128)
    return parser.parse_args()


if __name__ == "__main__":
    main()
