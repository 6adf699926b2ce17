"""The work that operators of a layer do, counted from their sizes: what their time is predicted from.

An operator's time is the sum of its amounts of work, each at a rate in seconds that was measured (`penstock.cost`). The
amounts are chosen by what limits a processor: numbers read that a core's own cache, the last cache or only memory
holds, rows written, edges looked up, products, and calls.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SHIPPED = Path(__file__).parents[1] / "shipped" / "operators.json"
"""The profile of operators that comes with Penstock, for machines that were not measured."""
Sizes = Mapping[str, float]
Amounts = dict[str, float]
Rates = Mapping[str, float]
"""Seconds for one unit of each kind of work."""


CHUNK = 1 << 18
"""Numbers read and written by one of the chunks that a kernel of the host gives to threads: some hundred microseconds,
long beside the microseconds of a call."""


class Processor(NamedTuple):
    """Bytes that a core's own cache holds, and the last one before memory; threads that share chunks of a kernel."""

    own_cache: float
    last_cache: float
    threads: float = 1.0


def seconds_of(rates: Rates, amounts: Amounts) -> float:
    """The predicted seconds of some work; kinds of work without a rate cost nothing."""
    return sum(rates.get(name, 0.0) * amount for name, amount in amounts.items())


def aggregate_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a sum over neighbour lists: `edges` rows of `width` are read from `src` rows, `dst` rows are written."""
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    fresh = _fresh(src, dst, edges)
    work = {
        "written": dst * width,
        "streamed": fresh * width,
        **rows_in_no_order(edges - fresh, width, src, processor),
    }
    return in_chunks(work, (edges + dst) * width, processor)


def aggregate_backward_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of the gradient of such a sum, along lists of readers: rows of `dst` are read, `src` rows are written."""
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    work = {
        "written": src * width,
        **rows_in_no_order(edges - _fresh(src, dst, edges), width, dst, processor),
    }
    return in_chunks(work, (edges + src) * width, processor)


def in_chunks(work: Amounts, numbers: float, processor: Processor) -> Amounts:
    """A call, and the work of its busiest thread: one thread has all of a small kernel, and a share of a large one."""
    chunks = max(1, int(numbers) // CHUNK)
    share = math.ceil(chunks / processor.threads) / chunks
    return {"calls": 1.0, **{name: amount * share for name, amount in work.items()}}


def _fresh(src: float, dst: float, edges: float) -> float:
    """Source rows that a block numbered as it met them: their first readings go through memory in order."""
    return min(max(src - dst, 0.0), edges)


def rows_in_no_order(count: float, width: float, table_rows: float, processor: Processor) -> Amounts:
    """Rows read in no order from a table: looked up, and moved from the cache or memory that holds them."""
    table = max(4 * table_rows * width, 1.0)
    near, last = min(1.0, processor.own_cache / table), min(1.0, processor.last_cache / table)
    return {
        "rows": count,
        "numbers": count * width,
        "rows_far": count * (last - near),
        "numbers_far": count * width * (last - near),
        "rows_memory": count * (1 - last),
        "numbers_memory": count * width * (1 - last),
    }


def transpose_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a counting sort of the edges by source, where counts and places are read and written in no order."""
    src, edges = sizes["src"], sizes["edges"]
    # A place for each source, and an index and an edge's number for each edge.
    far, memory = (max(0.0, 1 - cache / max(8 * src + 12 * edges, 1.0)) for cache in processor[:2])
    return {"calls": 1.0, "src": src, "edges": edges, "edges_far": edges * far, "edges_memory": edges * memory}


def dense_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a product of [rows, in] with [in, out]."""
    rows, width_in, width_out = (sizes[name] for name in ("rows", "in", "out"))
    return {
        "calls": 1.0,
        "flops": 2 * rows * width_in * width_out,
        "read": rows * width_in,
        "written": rows * width_out,
        "weights": width_in * width_out,
    }
