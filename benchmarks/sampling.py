"""How fast are neighbourhoods drawn, alone and with their features, beside torch-sparse (what PyG samples with)?

synthetic-products at 500,000 vertices and 25 M edges, fan-out 15,10,5, batches of 1024, everything in one run. Edges
are those drawn: torch-sparse draws a vertex's list once a batch, we (as DGL) once a layer; batches a second are shown
too.
"""

import argparse
import multiprocessing as mp
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cost.throughput import SamplingRow, best_of, measure_sampling, sampling_row, seed_batches
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from products_graph import BATCH, FANOUTS, products, show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=48)
    parser.add_argument("--peer-batches", type=int, default=6, help="batches for torch-sparse, which is slow")
    parser.add_argument("--graph", type=Path, help="keep the graph in this folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with products(args.nodes, args.graph) as graph:
        batches = seed_batches(graph, BATCH, args.batches)
        ours = [
            measure_sampling(graph, batches, FANOUTS, threads, gather) for gather in (False, True) for threads in (1, 2)
        ]
        theirs = torch_sparse_rows(graph, batches[: args.peer_batches])
    rows: list[dict[str, Any]] = []
    for row in [*ours, *theirs]:
        peers = [peer["million_edges_per_second"] for peer in theirs if peer["gather"] == row["gather"]]
        rows.append({**row, "times_torch_sparse": row["million_edges_per_second"] / max(peers) if peers else None})
    show("sampling", rows, args.json)


def torch_sparse_rows(graph: Graph, batches: list[Array]) -> list[SamplingRow]:
    """torch-sparse in one process, and in two that share the graph; the best of three rounds."""
    try:
        import torch_sparse  # noqa: F401
    except ImportError:
        print("torch-sparse is not installed: `pip install torch-sparse` to measure it too.")
        return []
    rows = []
    for gather in (False, True):
        peer = _Peer(graph, batches, gather)
        peer.draw(range(1))
        for processes in (1, 2):
            seconds, edges = best_of(3, lambda peer=peer, processes=processes: peer.draw_in_processes(processes))
            rows.append(sampling_row("torch-sparse", processes, gather, len(batches), edges, seconds))
    return rows


class _Peer:
    def __init__(self, graph: Graph, batches: list[Array], gather: bool) -> None:
        import torch

        self.indptr = torch.from_numpy(np.array(graph.indptr))
        self.indices = torch.from_numpy(np.array(graph.indices, np.int64))
        self.x = torch.from_numpy(np.array(graph.x))
        self.batches = [torch.from_numpy(np.asarray(seeds, np.int64)) for seeds in batches]
        self.gather = gather

    def draw(self, numbers: range) -> int:
        """Edges drawn for some batches."""
        import torch

        total = 0
        for number in numbers:
            found = torch.ops.torch_sparse.neighbor_sample(
                self.indptr, self.indices, self.batches[number], FANOUTS, False, True
            )
            if self.gather:
                self.x[found[0]]
            total += len(found[1])
        return total

    def draw_in_processes(self, count: int) -> int:
        """The same, split over processes forked with the graph, as PyG's loader does; results are not sent back."""
        if count == 1:
            return self.draw(range(len(self.batches)))
        import torch

        queue = mp.get_context("fork").SimpleQueue()

        def body(first: int) -> None:
            torch.set_num_threads(1)
            queue.put(self.draw(range(first, len(self.batches), count)))

        workers = [mp.get_context("fork").Process(target=body, args=(first,)) for first in range(count)]
        for worker in workers:
            worker.start()
        total = sum(queue.get() for _ in workers)
        for worker in workers:
            worker.join()
        return total


if __name__ == "__main__":
    main()
