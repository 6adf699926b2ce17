"""Work cut into blocks of rows and spread over threads; results never depend on how many."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from penstock.errors import PenstockError

Result = TypeVar("Result")


def default_threads() -> int:
    """The cores this process may use, or PENSTOCK_THREADS."""
    asked = os.environ.get("PENSTOCK_THREADS")
    if asked:
        if not asked.isdigit() or int(asked) < 1:
            raise PenstockError(
                f"PENSTOCK_THREADS={asked} is not a number of threads: give 1 or more.", code="value-out-of-range"
            )
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ranges(total: int, size: int) -> Iterator[tuple[int, int]]:
    """[0, total) cut into consecutive ranges of at most `size`."""
    for start in range(0, total, size):
        yield start, min(start + size, total)


def map_blocks(
    work: Callable[[int, int], Result], total: int, size: int, threads: int | None = None
) -> Iterator[Result]:
    """`work(start, stop)` of every block, in order, with at most two blocks per thread in progress.

    `work` should spend its time in kernels that release the interpreter lock.
    """
    threads = threads or default_threads()
    if threads == 1:
        for start, stop in ranges(total, size):
            yield work(start, stop)
        return
    with ThreadPoolExecutor(threads) as pool:
        todo = ranges(total, size)
        pending = [pool.submit(work, *block) for block in islice(todo, 2 * threads)]
        try:
            while pending:
                done = pending.pop(0).result()
                pending.extend(pool.submit(work, *block) for block in islice(todo, 1))
                yield done
        finally:
            for future in pending:
                future.cancel()


def run_blocks(work: Callable[[int, int], object], total: int, size: int, threads: int | None = None) -> None:
    """`map_blocks` for work that writes its result in place."""
    for _ in map_blocks(work, total, size, threads):
        pass
