"""The work that operators of a layer do, counted from their sizes: what their time is predicted from.

An operator's time is the sum of its amounts of work, each at a rate in seconds that was measured (`penstock.cost`). The
amounts are chosen by what limits a processor: numbers read that a core's own cache, the last cache or only memory
holds, rows written, edges looked up, products, and calls.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SHIPPED_MACHINES = Path(__file__).parents[1] / "shipped" / "machines"
"""The folder of the profiles of operators that come with Penstock, one for each machine that was measured."""
USUAL_HOST, USUAL_GPU = "arm-host", "h200"
"""The profiles that serve hosts and GPUs which were not measured."""
Sizes = Mapping[str, float]
Amounts = dict[str, float]
Rates = Mapping[str, float]
"""Seconds for one unit of each kind of work."""


CHUNK = 1 << 18
"""Numbers read and written by one of the chunks that a kernel of the host gives to threads: some hundred microseconds,
long beside the microseconds of a call."""


WINDOW = 4096
"""Edges among which a row that is read again is still in a core's own cache."""


class Processor(NamedTuple):
    """Bytes that a core's own cache holds, and the last one before memory; threads that share chunks of a kernel."""

    own_cache: float
    last_cache: float
    threads: float = 1.0


def seconds_of(rates: Rates, amounts: Amounts) -> float:
    """The predicted seconds of some work; kinds of work without a rate cost nothing."""
    return sum(rates.get(name, 0.0) * amount for name, amount in amounts.items())


def aggregate_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a sum over neighbour lists: `edges` rows of `width` are read from `src` rows, `dst` rows are written.

    `src_distinct` and `dst_passes`, where they are known, are counted by `penstock.cost.operators.entry.block_sizes`.
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
    """Of a sum over neighbour lists whose rows lie anywhere in a table of `table_rows`.

    Each of the `src` rows comes from the table once, in no order; read again, it is among rows of the block alone.
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
    """Of the gradient of such a sum, along lists of readers: rows of `dst` are read, `src` rows are written."""
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("dst_distinct", distinct_in_windows(edges, dst))
    work = {
        "written": src * width,
        "passes": sizes.get("src_passes", _passes(src, edges)) * width,
        **rows_in_no_order(edges, distinct, width, dst, processor),
    }
    return in_chunks(work, (edges + src) * width, processor)


def in_chunks(work: Amounts, numbers: float, processor: Processor) -> Amounts:
    """A call, and the work of its busiest thread: one thread has all of a small kernel, and a share of a large one."""
    chunks = max(1, int(numbers) // CHUNK)
    share = math.ceil(chunks / processor.threads) / chunks
    return {"calls": 1.0, **{name: amount * share for name, amount in work.items()}}


def _passes(rows: float, edges: float) -> float:
    """How often kernels go through rows that they write: once for four edges, once for each that is left over.

    A list of four or more leaves one and a half over, as a mean; shorter lists are left over.
    """
    left = min(edges, 1.5 * rows)
    return left + (edges - left) / 4


def _fresh(src: float, dst: float, edges: float) -> float:
    """Source rows that a block numbered as it met them: their first readings go through memory in order."""
    return min(max(src - dst, 0.0), edges)


def distinct_in_windows(reads: float, rows: float) -> float:
    """Rows that windows of 4,096 reads meet, if all rows are read alike: each once for every window that reads it."""
    each = min(reads, WINDOW)
    return reads * rows / max(rows + each, 1.0)


def rows_in_no_order(count: float, first: float, width: float, table_rows: float, processor: Processor) -> Amounts:
    """`count` rows read from a table, `first` of them not a moment ago: looked up, and moved from where they are."""
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
    """Shares of a table that a core's own cache holds, and the last cache."""
    return min(1.0, processor.own_cache / max(table_bytes, 1.0)), min(1.0, processor.last_cache / max(table_bytes, 1.0))


def transpose_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a counting sort of the edges by source, where counts and places are read and written in no order."""
    src, edges = sizes["src"], sizes["edges"]
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    # A place for each source, and an index and an edge's number for each edge.
    near, last = held_in_caches(8 * src + 12 * edges, processor)
    far, memory = distinct * (1 - near), distinct * (1 - last)
    return {"calls": 1.0, "src": src, "edges": edges, "edges_far": far, "edges_memory": memory}


def dense_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a product of [rows, in] with [in, out]: columns of the result are computed some at a time."""
    padded = _TILE * math.ceil(sizes["out"] / _TILE)
    return {**dense_gradient_work(sizes, processor), "flops": 2 * sizes["rows"] * sizes["in"] * padded}


def dense_gradient_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of the product that makes the gradient of the weights [in, out], or of the rows [rows, in]."""
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
