"""How good and how dear are schedules of an all-to-all: phases, time over the bound, seconds to compute.

Random matrices of bytes of every kind: `uniform`, `skewed` (Zipf), `hot` (a receiver gets eight times the others'),
`sparse` (a fifth of the pairs), `zero rows` (half of the ranks only receive) and `experts` (tokens by a skewed gate,
scheduled in tokens). Computing is processor time of one core, the least of a few times, compiled before. `over_bound`
is the weights' sum, without a price of phases. The printed algorithm is stopped after so many phases, and then has
neither number.
Run: python benchmarks/matching.py [--ranks 8 --ranks 32] [--schedule bvn] [--printed-phases 5000] [--json]
"""

from time import process_time
from typing import Annotated, Any

import numpy as np
import typer

from penstock.coflow import SCHEDULES, bound, schedule
from penstock.coflow.matching import printed_phases
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from products_graph import show

KINDS = ("uniform", "skewed", "hot", "sparse", "zero rows", "experts")
ENOUGH = 0.5
"""Seconds after which a schedule is not computed again."""


def main(
    ranks: Annotated[list[int] | None, typer.Option(help="Ranks; may be given again.")] = None,
    name: Annotated[list[str] | None, typer.Option("--schedule", help="A schedule; may be given again.")] = None,
    limit: Annotated[int, typer.Option("--printed-phases", help="Where the printed algorithm is stopped.")] = 5_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """A row for every number of ranks, kind of matrix and schedule."""
    names = name or list(SCHEDULES)
    for each in names:
        schedule([[0, 1, 2], [2, 0, 1], [1, 1, 0]], each)
    rows = []
    for count in ranks or [8, 32, 128]:
        for kind in KINDS:
            matrix = traffic(kind, count, np.random.default_rng([seed, count]))
            rows += [_row(matrix, kind, each, limit) for each in names]
    show("matching", rows, json)


def traffic(kind: str, ranks: int, rng: np.random.Generator) -> Array:
    """Bytes, or tokens of `experts`, from every rank to every rank."""
    matrix = rng.integers(1, 4 << 20, (ranks, ranks))
    if kind == "skewed":
        matrix = np.minimum(rng.zipf(1.3, (ranks, ranks)), 1 << 20) << 10
    elif kind == "hot":
        matrix[:, 0] *= 8
    elif kind == "sparse":
        matrix *= rng.random((ranks, ranks)) < 0.2
    elif kind == "zero rows":
        matrix[: ranks // 2] = 0
    elif kind == "experts":
        matrix = rng.multinomial(8192, rng.dirichlet(np.full(ranks, 0.5)), ranks)
    np.fill_diagonal(matrix, 0)
    return matrix


def _row(matrix: Array, kind: str, name: str, limit: int) -> dict[str, Any]:
    row: dict[str, Any] = {"ranks": len(matrix), "kind": kind, "schedule": name}
    try:
        phases, taken = _timed(matrix, name, limit)
    except PenstockError:
        return {**row, "phases": f"> {limit:,}", "over_bound": None, "compute_ms": None}
    over = sum(phase.weight for phase in phases) / bound(matrix, 1.0)
    return {**row, "phases": len(phases), "over_bound": over, "compute_ms": 1e3 * taken}


def _timed(matrix: Array, name: str, limit: int) -> tuple[list[Any], float]:
    least, spent = float("inf"), 0.0
    while spent < ENOUGH:
        began = process_time()
        phases = printed_phases(matrix, limit) if name == "printed" else schedule(matrix, name)
        taken = process_time() - began
        least, spent = min(least, taken), spent + max(taken, ENOUGH / 5)
    return phases, least


if __name__ == "__main__":
    typer.run(main)
