"""The work that operators of a layer do, counted from their sizes, from which their time is predicted.

An operator's time is the sum of its amounts of work, each times a rate in seconds that was measured (`penstock.cost`).
The amounts are chosen by what limits a CPU: values read from a core's own cache, the last cache or memory, rows
written, edges looked up, products, and calls.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SHIPPED_MACHINES = Path(__file__).parents[1] / "shipped" / "machines"
"""The folder of the operator profiles that come with Penstock, one for each machine that was measured."""
USUAL_HOST, USUAL_GPU = "arm-host", "h200"
"""The profiles that serve hosts and GPUs which were not measured."""
Sizes = Mapping[str, float]


class Call(NamedTuple):
    """An operator with its sizes."""

    operator: str
    sizes: Sizes


Amounts = dict[str, float]
Rates = Mapping[str, float]
"""Seconds for one unit of each kind of work."""


CHUNK = 1 << 18
"""Values read and written in one of the chunks that a kernel of the host gives to threads: some hundred microseconds,
long compared with the microseconds of a call.
"""


WINDOW = 4096
"""Edges within which a row that is read again is still in a core's own cache."""


class Processor(NamedTuple):
    """Bytes of a core's own cache, and of the last one before memory; threads that share chunks of a kernel."""

    own_cache: float
    last_cache: float
    threads: float = 1.0


def seconds_of(rates: Rates, amounts: Amounts) -> float:
    """The predicted seconds of some work; kinds of work without a rate cost nothing."""
    return sum(rates.get(name, 0.0) * amount for name, amount in amounts.items())


def aggregate_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a sum over neighbour lists: `edges` rows of `width` are read from `src` rows, `dst` rows are written.

    `src_distinct` and `dst_passes`, if known, are counted by `penstock.cost.operators.entry.block_sizes`.
    """
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    work = {
        "written": dst * width,
        "passes": sizes.get("dst_passes", _passes(dst, edges)) * width,
        "streamed": _fresh(src, dst, edges) * width,
        **rows_in_no_order(edges, distinct - _fresh(src, dst, edges), width, src, processor),
    }
    return in_chunks(work, (edges + dst) * width, processor)


def aggregate_table_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a sum over neighbour lists whose rows are anywhere in a table of `table_rows`.

    Each of the `src` rows is read from the table once, in no order; later reads of it are among the block's rows only.
    """
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    near, last = held_in_caches(4 * sizes["table_rows"] * width, processor)
    work = {
        "written": dst * width,
        "passes": sizes.get("dst_passes", _passes(dst, edges)) * width,
        "first_rows": src * (1 - near),
        "first_numbers": src * width * (1 - last),
        **rows_in_no_order(edges, distinct - src, width, src, processor),
    }
    return in_chunks(work, (edges + dst) * width, processor)


def aggregate_backward_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of the gradient of such a sum, along transposed lists: rows of `dst` are read, `src`
    rows are written.
    """
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("dst_distinct", distinct_in_windows(edges, dst))
    work = {
        "written": src * width,
        "passes": sizes.get("src_passes", _passes(src, edges)) * width,
        **rows_in_no_order(edges, distinct, width, dst, processor),
    }
    return in_chunks(work, (edges + src) * width, processor)


def in_chunks(work: Amounts, numbers: float, processor: Processor) -> Amounts:
    """A call, and the work of its busiest thread: one thread does all of a small kernel, and a share of a large one."""
    chunks = max(1, int(numbers) // CHUNK)
    share = math.ceil(chunks / processor.threads) / chunks
    return {"calls": 1.0, **{name: amount * share for name, amount in work.items()}}


def _passes(rows: float, edges: float) -> float:
    """How often kernels pass over the rows that they write: once for four edges, and once for each remaining one.

    A list of four or more has one and a half remaining edges on average; of shorter lists all remain.
    """
    left = min(edges, 1.5 * rows)
    return left + (edges - left) / 4


def _fresh(src: float, dst: float, edges: float) -> float:
    """Source rows that are first read in the order in which the block numbered them, and so sequentially."""
    return min(max(src - dst, 0.0), edges)


def distinct_in_windows(reads: float, rows: float) -> float:
    """Rows that windows of 4,096 reads meet, if all rows are equally likely: each once for every
    window that reads it.
    """
    each = min(reads, WINDOW)
    return reads * rows / max(rows + each, 1.0)


def rows_in_no_order(count: float, first: float, width: float, table_rows: float, processor: Processor) -> Amounts:
    """`count` rows read from a table, `first` of them for the first time: looked up, and moved from where they are."""
    near, last = held_in_caches(4 * table_rows * width, processor)
    far, memory = max(first, 0.0) * (1 - near), max(first, 0.0) * (1 - last)
    return {
        "rows": count,
        "numbers": count * width,
        "rows_far": far,
        "numbers_far": far * width,
        "rows_memory": memory,
        "numbers_memory": memory * width,
    }


def held_in_caches(table_bytes: float, processor: Processor) -> tuple[float, float]:
    """The shares of a table that a core's own cache and the last cache hold."""
    return min(1.0, processor.own_cache / max(table_bytes, 1.0)), min(1.0, processor.last_cache / max(table_bytes, 1.0))


def transpose_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a counting sort of the edges by source, where counts and positions are read and
    written in no order.
    """
    src, edges = sizes["src"], sizes["edges"]
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    # A position for each source, and an index and an edge number for each edge.
    near, last = held_in_caches(8 * src + 12 * edges, processor)
    far, memory = distinct * (1 - near), distinct * (1 - last)
    return {"calls": 1.0, "src": src, "edges": edges, "edges_far": far, "edges_memory": memory}


def dense_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a product of [rows, in] with [in, out]: columns of the result are computed some at a time."""
    padded = _TILE * math.ceil(sizes["out"] / _TILE)
    return {**dense_gradient_work(sizes, processor), "flops": 2 * sizes["rows"] * sizes["in"] * padded}


def dense_gradient_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of the product that computes the gradient of the weights [in, out], or of the rows [rows, in]."""
    rows, width_in, width_out = (sizes[name] for name in ("rows", "in", "out"))
    return {
        "calls": 1.0,
        "flops": 2 * rows * width_in * width_out,
        "read": rows * width_in,
        "written": rows * width_out,
        "weights": width_in * width_out,
    }


_TILE = 8
"""Columns that a product computes at a time."""
