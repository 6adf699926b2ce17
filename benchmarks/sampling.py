"""How fast are neighbourhoods drawn, alone and with their features, beside torch-sparse (what PyG samples with)?

synthetic-products at 500,000 vertices and 25 M edges, fan-out 15,10,5, batches of 1024, everything in one run. Edges
are those drawn: torch-sparse draws a vertex's list once a batch, we (as DGL) once a layer; batches a second are shown
too.
"""

import argparse
import multiprocessing as mp
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.store import gather_rows
from products_batches import FANOUTS, best_of, products, seed_batches, show

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=48)
    parser.add_argument("--peer-batches", type=int, default=6, help="batches for torch-sparse, which is slow")
    parser.add_argument("--graph", type=Path, help="keep the graph in this folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with products(args.nodes, args.graph) as graph:
        batches = seed_batches(graph, args.batches)
        ours = [penstock_row(graph, batches, threads, gather) for gather in (False, True) for threads in (1, 2)]
        theirs = torch_sparse_rows(graph, batches[: args.peer_batches])
    rows = [*ours, *theirs]
    for row in rows:
        peers = [peer["M edges/s"] for peer in theirs if peer["gather"] == row["gather"]]
        row["x torch-sparse"] = row["M edges/s"] / max(peers) if peers else 0.0
    show("sampling", rows, args.json)


def penstock_row(graph: Graph, batches: list[Array], threads: int, gather: bool) -> dict[str, Any]:
    """Ours, a batch a thread; the best of three rounds. Features go into a buffer a thread, used again and again."""
    sampler = NeighbourSampler(graph, FANOUTS)
    buffers: dict[int, Array] = {}

    def work(index: int) -> int:
        batch = sampler.sample(batches[index], BatchKey(0, 0, index))
        if gather:
            count, thread = len(batch.vertices), threading.get_ident()
            buffer = buffers.get(thread)
            if buffer is None or len(buffer) < count:
                buffers[thread] = buffer = np.empty((count + count // 4, graph.x.shape[1]), graph.x.dtype)
            gather_rows(graph.x, batch.vertices, buffer[:count])
        return batch.num_edges

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(2 * threads)))
        seconds, edges = best_of(ROUNDS, lambda: sum(pool.map(work, range(len(batches)))))
    return _row("penstock", f"{threads} threads", gather, len(batches), edges, seconds)


def torch_sparse_rows(graph: Graph, batches: list[Array]) -> list[dict[str, Any]]:
    """torch-sparse in one process, and in two that share the graph."""
    try:
        import torch_sparse  # noqa: F401
    except ImportError:
        print("torch-sparse is not installed: `pip install torch-sparse` to measure it too.")
        return []
    rows = []
    for gather in (False, True):
        peer = _Peer(graph, batches, gather)
        peer.draw(range(1))
        seconds, edges = best_of(ROUNDS, lambda peer=peer: peer.draw(range(len(batches))))
        rows.append(_row("torch-sparse", "1 process", gather, len(batches), edges, seconds))
        seconds, edges = best_of(1, lambda peer=peer: peer.draw_in_processes(2))
        rows.append(_row("torch-sparse", "2 processes", gather, len(batches), edges, seconds))
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
        """The same, split over processes that were forked with the graph; their results are not sent back."""
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


def _row(sampler: str, how: str, gather: bool, batches: int, edges: int, seconds: float) -> dict[str, Any]:
    return {
        "sampler": sampler,
        "on": how,
        "gather": gather,
        "edges a batch": edges // batches,
        "M edges/s": edges / seconds / 1e6,
        "batches/s": batches / seconds,
    }


if __name__ == "__main__":
    main()
