"""The rows of a cut graph that a worker reads most, on its GPU; all others are asked of their owners."""

import numpy as np

from penstock.cluster.worker.gathered_graph import PartedColumn
from penstock.cluster.worker.read_counts import read_counts
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store import CachedSource, RowSource, cached_source
from penstock.store.device.copies import to_device
from penstock.store.device.tables import ResidentTable
from penstock.store.hot_rows import by_counts
from penstock.train.device.share_supply import Share
from penstock.train.session import Session


def cache_bytes(session: Session) -> int:
    """What the job's `cache_rows` take on the GPU; refused where the graph has no such rows."""
    rows, source = session.job.placed.cache_rows or 0, _only_source(session)
    if rows > source.shape[0]:
        raise PenstockError(
            f"cache_rows is {rows:,} of {source.shape[0]:,} rows: give 0 to {source.shape[0]:,}.",
            code="value-out-of-range",
        )
    return rows * row_bytes(session)


def row_bytes(session: Session) -> int:
    """What one cached row takes."""
    source = _only_source(session)
    return int(np.prod(source.row_shape())) * int(np.dtype(source.dtype).itemsize)


def with_cached_rows(session: Session, share: Share) -> CachedSource:
    """The session's features with the job's `cache_rows` on the GPU: those that the worker's first shares read most."""
    below = _only_source(session)
    ids = by_counts(_reads(session, share, below.shape[0]), session.job.placed.cache_rows or 0)
    near = ResidentTable(to_device(PartedColumn(below, ids), session.inputs.device, what="cached rows"))  # type: ignore[arg-type]
    return cached_source(below, ids, near)


def _reads(session: Session, share: Share, rows: int) -> Array:
    """How often each row is read in the first batches."""
    ((ids, reads),) = read_counts(session, share).values()
    counts = np.zeros(rows, np.int64)
    counts[ids] = reads
    return counts


def _only_source(session: Session) -> RowSource:
    sources = session.inputs.sources
    if len(sources) != 1 or not session.graph.is_homogeneous:
        raise PenstockError(
            "cache_rows is for graphs with one node type and one edge type: leave it out of `placement`.",
            code="unsupported-combination",
        )
    (only,) = sources.values()
    return only
