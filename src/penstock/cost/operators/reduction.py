"""The sum of a vector over two processes of this host, by torch's gloo over loopback."""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from penstock.cost.operators.entry import Operator, Rung, work_of
from penstock.errors import PenstockError
from penstock.processes import start_python

_REPEATS = 7
_PATIENCE = 60.0
"""Seconds for the other process to start and to answer."""
_OTHER = f"from {__name__} import answer_sums; answer_sums()"


def measure_reduction(rungs: list[Rung]) -> list[list[float]]:
    """Seconds of some sums on every rung, by this process and one that is started for it."""
    numbers = [_numbers(rung) for rung in rungs]
    found: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        other = start_python(["-c", _OTHER, store, json.dumps(numbers)])
        try:
            _sum_all(0, store, numbers, found)
        except RuntimeError as error:
            short = " ".join(str(error).split())[:200]
            raise PenstockError(
                f"Two processes of this host could not sum a vector ({short}).", code="unexpected-failure"
            ) from error
        finally:
            with suppress(subprocess.TimeoutExpired):
                other.wait(_PATIENCE)
            other.kill()
            other.wait()
    return found


def answer_sums() -> None:
    """The other process: its arguments are the file for the rendezvous, and the lengths of the vectors."""
    _sum_all(1, sys.argv[1], json.loads(sys.argv[2]), None)


def _sum_all(rank: int, path: str, numbers: list[int], found: list[list[float]] | None) -> None:
    parts: Any = distributed
    gloo = parts.ProcessGroupGloo
    options = gloo._Options()
    options._devices, options._timeout = [gloo.create_device(hostname="127.0.0.1")], timedelta(seconds=_PATIENCE)
    group = gloo(parts.FileStore(path, 2), rank, 2, options)
    for count in numbers:
        values, times = torch.ones(count), []
        for _ in range(_REPEATS):
            group.barrier().wait()
            start = time.perf_counter()
            group.allreduce([values]).wait()
            times.append(time.perf_counter() - start)
        if found is not None:
            found.append(times[1:])


def _numbers(rung: Rung) -> int:
    """The length of a rung's vector: from thousands to millions, as gradients have."""
    return rung.block.num_edges


ALL_REDUCE = Operator(
    "all_reduce",
    lambda rung: {"bytes": 4 * _numbers(rung), "workers": 2},
    # A latency, and the bytes of the vector.
    work_of("bytes"),
    measure_all=measure_reduction,
    devices=frozenset({"cpu"}),
    cores=1.0,
)
