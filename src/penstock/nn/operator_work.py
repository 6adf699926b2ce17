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


SKEW = 0.5
"""How reads concentrate on some rows, where nothing is known of a graph (`held_in_caches`)."""


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
        "passes": sizes.get("dst_passes", _passes(dst, edges)) * width,
        "streamed": fresh * width,
        **rows_in_no_order(edges - fresh, width, src, processor, sizes.get("src_skew", SKEW)),
    }
    return in_chunks(work, (edges + dst) * width, processor)


def aggregate_backward_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of the gradient of such a sum, along lists of readers: rows of `dst` are read, `src` rows are written."""
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    work = {
        "written": src * width,
        "passes": sizes.get("src_passes", _passes(src, edges)) * width,
        **rows_in_no_order(edges - _fresh(src, dst, edges), width, dst, processor, sizes.get("dst_skew", SKEW)),
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


def rows_in_no_order(
    count: float, width: float, table_rows: float, processor: Processor, skew: float = SKEW
) -> Amounts:
    """Rows read in no order from a table: looked up, and moved from the cache or memory that holds them."""
    near, last = held_in_caches(4 * table_rows * width, processor, skew)
    return {
        "rows": count,
        "numbers": count * width,
        "rows_far": count * (last - near),
        "numbers_far": count * width * (last - near),
        "rows_memory": count * (1 - last),
        "numbers_memory": count * width * (1 - last),
    }


def held_in_caches(table_bytes: float, processor: Processor, skew: float = SKEW) -> tuple[float, float]:
    """Shares of the reads of a table that a core's own cache answers, and that no level behind the last one does.

    A cache keeps what is read most. With a skew of s, the part p of the rows that is read most has the share p ** s of
    all reads: 1 where every row is read alike, less where some are read again and again.
    """
    near, last = (min(1.0, cache / max(table_bytes, 1.0)) for cache in processor[:2])
    return near**skew, last**skew


def transpose_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a counting sort of the edges by source, where counts and places are read and written in no order."""
    src, edges = sizes["src"], sizes["edges"]
    # A place for each source, and an index and an edge's number for each edge.
    near, last = held_in_caches(8 * src + 12 * edges, processor, sizes.get("src_skew", SKEW))
    far, memory = edges * (last - near), edges * (1 - last)
    return {"calls": 1.0, "src": src, "edges": edges, "edges_far": far, "edges_memory": memory}


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
