"""Which vertices each worker computes where rows of all vertices are computed: its share of its machine's parts."""

from collections.abc import Iterator

from penstock.cluster.layout import Layout
from penstock.partition.owners import Book


def worker_ranges(layout: Layout, book: Book, node_type: str) -> Iterator[tuple[int, int, int]]:
    """(first, last, rank) of ranges of new numbers, ascending.

    A part is shared by the workers of its machine, or by all workers where its machine has none.
    """
    workers = layout.of_kind("worker")
    for part in range(book.parts):
        near = [task.rank for task in workers if part in task.parts] or [task.rank for task in workers]
        first, last = book.range(part, node_type)
        for place, rank in enumerate(near):
            count = last - first
            yield first + count * place // len(near), first + count * (place + 1) // len(near), rank
