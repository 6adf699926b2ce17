"""What do matchings gain where a receiver is hot: an all-to-all between hosts with links of their own.

Hosts in a box (hosts.py), a process a host, over gloo. Every pair has the same bytes, but one receiver several times as
many. Ways: torch's own `all_to_all_single`, and ours with `fair` (all at once), `matched` and `bvn`. They take turns,
so that they meet the same machine. `seconds` is from the first rank's start to the last one's end, a median; sizes are
known to all ways beforehand, and schedules computed.

`bound` is the busiest port's bytes at the links' rate less the headers of full frames; `predicted` adds to a schedule's
time the price of a phase, which is measured with one row a pair, where phases are all there is.
Run, as root: python benchmarks/all_to_all.py [--hosts 8] [--rate 100] [--kib 512] [--json]
"""

import json as documents
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
import typer

from hosts import DEVICE, check_allowed, hosts
from penstock.coflow import all_to_all, bound, schedule, seconds
from penstock.coflow.exchange import phases_of_rank
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from products_graph import show

ROW = 1024
"""Bytes."""
PORT = 29517
PAYLOAD = 1448 / 1514
"""Of a full Ethernet frame: what TCP carries in it."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Hosts in a box have addresses and no names, of which torch warns."""
TORCH = "torch"
WAYS = (TORCH, "fair", "matched", "bvn")


def main(
    hosts_: Annotated[int, typer.Option("--hosts")] = 8,
    rate: Annotated[float, typer.Option(help="Mbit/s of every link.")] = 100.0,
    kib: Annotated[int, typer.Option(help="KiB for every receiver but the hot one.")] = 512,
    hot: Annotated[int, typer.Option(help="So many times that for the hot one.")] = 4,
    repeats: int = 5,
    json: bool = False,
    rank: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """A row for every way."""
    matrix = np.full((hosts_, hosts_), kib * 1024 // ROW)
    matrix[:, 0] *= hot
    np.fill_diagonal(matrix, 0)
    if rank >= 0:
        print(documents.dumps(_take_part(matrix, rank, repeats)))
        return
    try:
        check_allowed()
        found = measure(len(matrix), rate)
    except PenstockError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    show("all_to_all", [_row(way, matrix, rate, found) for way in WAYS], json)


def measure(count: int, rate_mbit: float) -> dict[str, Any]:
    """What the first rank has found: seconds by way, and of a phase."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, **QUIET, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
    with hosts([rate_mbit] * count) as bed, tempfile.TemporaryFile("w+") as answer:
        try:
            for rank, host in enumerate(bed):
                command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--rank", str(rank)]
                with host.entered():
                    out = answer if rank == 0 else subprocess.DEVNULL
                    started.append(subprocess.Popen(command, env=environment, text=True, stdout=out))
            for rank, process in enumerate(started):
                if process.wait() != 0:
                    raise PenstockError(
                        f"Rank {rank} ended with {process.returncode}: see its words above.", code="external-failure"
                    )
        finally:
            for process in started:
                process.kill()
                process.wait()
        answer.seek(0)
        found: dict[str, Any] = documents.loads(answer.read().splitlines()[-1])
        return found


def _take_part(matrix: Array, rank: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://10.77.0.1:{PORT}", rank=rank, world_size=len(matrix))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    single = np.minimum(matrix, 1)
    phases = len(schedule(single, "bvn"))
    prices = [_timed("bvn", single, rank) / phases for _ in range(repeats + 1)]
    for _ in range(repeats + 1):
        for way in WAYS:
            found[way].append(_timed(way, matrix, rank))
    dist.destroy_process_group()
    # The first of each makes connections and schedules.
    return {"phase_s": statistics.median(prices[1:]), **{way: taken[1:] for way, taken in found.items()}}


def _timed(way: str, matrix: Array, rank: int) -> float:
    """Seconds from the first rank's start to the last one's end: all ranks have one clock."""
    rows = torch.randint(256, (int(matrix[rank].sum()), ROW), dtype=torch.uint8)
    came = torch.empty((int(matrix[:, rank].sum()), ROW), dtype=torch.uint8)
    phases_of_rank(matrix, rank, _name(way))
    dist.barrier()
    began = time.monotonic()
    if way == TORCH:
        dist.all_to_all_single(came, rows, matrix[:, rank].tolist(), matrix[rank].tolist())
    else:
        all_to_all(rows, matrix, schedule=way)
    times = torch.tensor([-began, time.monotonic()], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return float(times.sum())


def _name(way: str) -> str:
    """A way's schedule; torch's own posts everything at once too."""
    return "fair" if way == TORCH else way


def _row(way: str, matrix: Array, rate_mbit: float, found: dict[str, Any]) -> dict[str, Any]:
    rate = rate_mbit * 1e6 / 8 * PAYLOAD
    phases = max(len(phases_of_rank(matrix, rank, _name(way))) for rank in range(len(matrix)))
    price = found["phase_s"] if way not in (TORCH, "fair") else 0.0
    least, taken = bound(matrix * ROW, rate), statistics.median(found[way])
    predicted = seconds(matrix * ROW, _name(way), rate) + price * phases
    return {
        "way": way,
        "phases": phases,
        "seconds": taken,
        "slowest_s": max(found[way]),
        "bound_s": least,
        "over_bound": taken / least,
        "predicted_s": predicted,
        "error": predicted / taken - 1,
        "phase_ms": 1e3 * price,
    }


if __name__ == "__main__":
    typer.run(main)
