"""What do filled columns and int8 rows add to what a layer aggregates?

Each graph is cut into parts. The rows of a vertex's neighbours in other parts are read as they would arrive, and the
mean over its whole list is compared with the exact one, over all vertices that have such neighbours. Nothing is
sampled, so that the error is that of the rows alone. `error` is the root of the sum of all squared differences over
that of all squared means; `bias` is the same for the mean of `--draws` independent draws: what is unbiased falls with
the root of their number, and what is not stays.

  columns   a share of the columns at random, the others filled with the mean row of the part that the vertex is in
  int8      a scale for each row, rounded to the nearest
  int8r     the same, rounded at random
Run: python benchmarks/row_errors.py [--data ../shared/data] [--graphs cora amazon-photo] [--parts 4] [--draws 64]
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from explained import DATA
from penstock.partition import Cut, cut
from penstock.store.parts.requests import PartRows, encoding_for
from penstock.train.dataset.prepared_graph import open_data
from penstock.train.job import make_job

GRAPHS = ["cora", "citeseer", "cora-ml", "actor", "amazon-photo", "tolokers"]
Received = Callable[[int], Any]
"""The rows of all vertices as another part receives them, in a draw of that number."""


def main() -> None:
    args = _arguments()
    for name in args.graphs:
        graph = open_data(make_job({"graph": str(args.data / f"{name}.npz")}))
        ((nodes,), (edges,)) = graph.nodes.values(), graph.edges.values()
        x, owners = np.ascontiguousarray(nodes.fields["x"], np.float32), owners_of(graph, args.parts)
        lists = Lists(edges.indptr, edges.indices, owners)
        for way, received in ways(x, owners, args.share).items():
            row = {"graph": name, "columns": x.shape[1], "way": way, **errors(lists, x, received, args.draws)}
            print(json.dumps(row), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.85, help="of the columns that are sent")
    parser.add_argument("--draws", type=int, default=64)
    return parser.parse_args()


def owners_of(graph: Any, parts: int) -> Any:
    """The part of every vertex."""
    with tempfile.TemporaryDirectory() as folder:
        partition = cut(graph, Cut(parts, 1, "metis", seed=0), Path(folder) / "parts")
        (name,) = graph.nodes
        bounds = np.asarray(partition.book.bounds(name))
        return np.searchsorted(bounds, partition.new_ids(np.arange(graph.num_nodes), name), "right") - 1


class Lists:
    """The neighbour lists of vertices that have neighbours in other parts."""

    def __init__(self, indptr: Any, indices: Any, owners: Any) -> None:
        targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        remote = owners[indices] != owners[targets]
        reached = np.zeros(len(indptr) - 1, np.bool_)
        reached[targets[remote]] = True
        kept = reached[targets]
        self._sources, self._remote = np.asarray(indices)[kept], remote[kept]
        lengths = np.diff(indptr)[reached]
        self._starts, self._lengths = np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths[:, None]

    def means(self, own: Any, received: Any) -> Any:
        """Of whole lists, where remote neighbours' rows are those received."""
        rows = own[self._sources].astype(np.float64)
        rows[self._remote] = received[self._sources[self._remote]]
        return np.add.reduceat(rows, self._starts) / self._lengths


def ways(x: Any, owners: Any, share: float) -> dict[str, Received]:
    """How rows of other parts are received."""
    means = np.stack([x[owners == part].mean(0, dtype=np.float64) for part in range(owners.max() + 1)])

    def filled(draw: int) -> Any:
        width = x.shape[1]
        absent = np.random.default_rng(draw).permutation(width)[round(share * width) :]
        out = x.copy()
        out[:, absent] = means[owners][:, absent]
        return out

    def narrowed(key: int | None) -> Any:
        encoding = encoding_for("int8", x.dtype, x.shape[1:], None, key)
        every, out = np.arange(len(x)), np.empty_like(x)
        buffer = np.empty(len(x) * encoding.row_bytes, np.uint8)
        encoding.unpack(encoding.pack(x, every, buffer, PartRows(0, every)), every, out)
        return out

    return {f"columns {share:g}": filled, "int8": lambda _: narrowed(None), "int8r": narrowed}


def errors(lists: Lists, x: Any, received: Received, draws: int) -> dict[str, float]:
    """Of one draw, in the mean over all of them, and of the mean over draws."""
    exact, total, squares = lists.means(x, x), 0.0, list[float]()
    for draw in range(draws):
        difference = lists.means(x, received(draw)) - exact
        total, squares = total + difference, [*squares, float((difference**2).sum())]
    return {"error": _relative(squares, exact), "bias": _relative([float(((total / draws) ** 2).sum())], exact)}


def _relative(squares: Sequence[float], exact: Any) -> float:
    return round(float(np.sqrt(np.mean(squares) / (exact**2).sum())), 5)


if __name__ == "__main__":
    main()
