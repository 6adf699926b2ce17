"""Chunks of a kernel's rows spread over a few threads that live as long as the process.

Chunks depend on the block alone, never on the number of threads, so neither does any sum over chunks.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise

import torch

from penstock.graph.arrays import Array
from penstock.nn.kernels import cut_evenly
from penstock.nn.operator_costs import CHUNK
from penstock.traced import is_traced


def row_chunks(indptr: Array, width: int) -> list[tuple[int, int]]:
    """Rows cut so that chunks have about the same number of edges; one chunk where the block is small."""
    if is_traced():
        return [(0, len(indptr) - 1)]
    work = (int(indptr[-1]) + len(indptr)) * max(width, 1)
    bounds = cut_evenly(indptr, max(1, work // CHUNK)).tolist()
    return list(pairwise(bounds))


def plain_chunks(rows: int, width: int) -> list[tuple[int, int]]:
    """Rows cut into equal chunks; one where the matrix is small."""
    most = max(1, CHUNK // max(width, 1))
    return [(first, min(first + most, rows)) for first in range(0, rows, most)]


def column_chunks(width: int, rows: int) -> list[tuple[int, int]]:
    """Columns cut into stripes of whole cache lines; one stripe where the matrix is small."""
    if rows * width <= CHUNK:
        return [(0, width)]
    return [(start, min(start + 32, width)) for start in range(0, width, 32)]


def run_chunks(work: Callable[[int, int, int], object], chunks: list[tuple[int, int]]) -> None:
    """Call `work(number, first, last)` for every chunk, on as many threads as torch uses, the caller's included.

    `work` should spend its time in kernels that release the interpreter lock. Under `tracing` it is not called.
    """
    if is_traced():
        return
    threads = min(torch.get_num_threads(), len(chunks))
    numbers = count()

    def take() -> None:
        while (number := next(numbers)) < len(chunks):
            work(number, *chunks[number])

    others = [_pool(threads - 1).submit(take) for _ in range(threads - 1)]
    try:
        take()
    finally:
        # A task that has not begun finds nothing left to do.
        for other in others:
            if not other.cancel():
                other.result()


class _State:
    pool: ThreadPoolExecutor | None = None
    size = 0


_lock = threading.Lock()


def _pool(size: int) -> ThreadPoolExecutor:
    """The process's threads, at least `size` of them. A pool that is replaced ends when its last caller drops it."""
    with _lock:
        if _State.pool is None or _State.size < size:
            _State.pool, _State.size = ThreadPoolExecutor(size, "penstock-nn"), size
        return _State.pool


def _forget_pool() -> None:
    """Drop the pool after a fork, which threads do not survive; a child makes its own."""
    global _lock
    _lock = threading.Lock()
    _State.pool, _State.size = None, 0


os.register_at_fork(after_in_child=_forget_pool)
