"""What sending fewer bytes of features would bring to a plan: fewer bits, a cache, fewer remote rows and columns.

Bytes are predicted from the profile and from batches that are drawn for it (`remote_reads`), and the plan is simulated
again with them. What explanations read is counted, the processor time that they take is not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.cost.profile import Profile
from penstock.graph.graph import Graph
from penstock.partition.part_numbers import parts_of
from penstock.plan.comparison import Trial
from penstock.plan.document import Change
from penstock.plan.remote_reads import CountedBatches, RemoteReads
from penstock.plan.replica_changes import change_by
from penstock.plan.workloads import PlannedRun, workload_entry
from penstock.quantities import percent
from penstock.sampling.explained.options import ExplainOptions

CACHED = 0.1
"""Of the remote rows that a machine's lists name, the share whose cache is looked at."""
ROW_OVERHEAD = 25
"""Bytes that a cached row takes beside itself."""
_LENGTH_BYTES, _EDGE_BYTES, _WEIGHT_BYTES, _TOTAL_BYTES = 1, 4, 4, 4
"""Bytes of a drawn list's length, of an edge, of its weight, and of a whole list's length, as they travel."""
_LEAST = 0.02
"""A gain below this share is not worth a word."""
_MOST_EDGES = 200_000_000
"""Larger graphs are not counted through for advice."""


@dataclass(frozen=True)
class Way:
    """A way to send fewer bytes: what to write, and the factors on the bytes of features and of neighbour lists."""

    what: str
    factor: float
    lists: float = 1.0


def transport_changes(planned: PlannedRun, best: Trial, seed: int) -> list[Change]:
    """Each way by itself and the ways that combine, the most useful first; none where nothing is sent over links."""
    features = planned.profile.transfer("features")
    pulls = workload_entry(planned.profile.mode).uses_replicas and features is not None
    if not pulls or not planned.has_graph or len(planned.cluster.machines) < 2:
        return []
    assert features is not None
    where = dict(zip(best.timeline.load.task_names, best.placed.machine_of.tolist(), strict=True))
    seats = [where[f"worker-{rank}"] for rank in range(planned.profile.workers)]
    remote = sum(
        size for part, row in enumerate(features.bytes) for size, seat in zip(row, seats, strict=True) if seat != part
    )
    if not remote:
        return []
    changes = []
    for way in ways_of(planned, seats):
        factors = {"features": way.factor, "lists": way.lists}
        other = replace(planned, profile=_with_transfers(planned.profile, factors, seats))
        change = change_by(way.what, planned, other, best, seed)
        gain = change.gain if change.gain > _LEAST else 0.0
        changes.append(change.model_copy(update={"gain": gain, "feature_bytes": way.factor * remote}))
    return sorted(changes, key=lambda change: -change.gain)


def transport_advice(changes: Sequence[Change]) -> str:
    """Which ways help, in words: the best single one, then the others in order, then a combination that saves more."""
    useful = sorted((change for change in changes if change.gain > 0), key=lambda change: -change.gain)
    if not useful:
        return ""
    single = [change for change in useful if " with " not in change.what] or useful
    best, first = useful[0], single[0]
    said = [f"Links limit this run: {first.what} alone would save {percent(first.gain)} of an iteration."]
    less = [f"{change.what} ({percent(change.gain)}{_remark(change)})" for change in single[1:]]
    if less:
        said.append(f"Less would be saved by {', '.join(less)}.")
    if best is not first and best.gain > first.gain + _LEAST:
        said.append(f"The most would be saved by {best.what}: {percent(best.gain)}.")
    return " ".join(said)


def _remark(change: Change) -> str:
    """A remark on a way to send fewer bytes, beside how much it saves."""
    remarks = {"remote_cache_mb": ", lossless", "sampler: explained": ", changes what is drawn"}
    return next((remark for start, remark in remarks.items() if change.what.startswith(start)), "")


def ways_of(planned: PlannedRun, seats: Sequence[int]) -> list[Way]:
    """The ways that the cluster and the job do not take yet, and their combinations; for graphs of one type."""
    cluster, job, graph = planned.cluster, planned.profile.job, planned.open_graph()
    if not graph.is_homogeneous or graph.num_edges > _MOST_EDGES:
        return []
    rows = _Rows.of(graph, str(job.get("features", "x")))
    if rows is None:
        return []
    narrow, cache, explained = list[Way](), list[Way](), list[Way]()
    if cluster.wire_type == "stored" and rows.itemsize > 2:
        narrow.append(Way("wire_type: float16", 2 / rows.itemsize))
        narrow.append(Way("wire_type: int8", (rows.width + 4) / rows.nbytes))
    reads = _reads(planned, graph, seats)
    if reads is not None and reads.plain.rows:
        plain, chosen = reads
        if not cluster.remote_cache_mb:
            size = CACHED * max(plain.halos) * (rows.nbytes + ROW_OVERHEAD) / (1 << 20)
            cache.append(Way(f"remote_cache_mb: {size:.3g}", 1 - plain.cache_hits / plain.rows))
        if chosen is not None:
            explained.append(_explained(plain, chosen, rows))
    int8 = narrow[-1:]
    # Rows of some columns have a scale of their own and are not cached.
    several = [each for each in (int8 + cache, explained + int8) if len(each) > 1]
    return [*narrow, *cache, *explained, *map(_combined, several)]


def _explained(plain: RemoteReads, chosen: RemoteReads, rows: "_Rows") -> Way:
    """Sampler explained as it is by default, whose batches read what is `chosen` where plain ones read `plain`.

    An explanation reads some remote rows, others every time, unless they are all that there are. Lists come with a
    weight for every edge, and with the lengths of the whole lists of all rows that the last hop reads.
    """
    options = ExplainOptions()  # type: ignore[call-arg]
    explaining = sum(options.explain_rows for halo in plain.halos if halo > options.explain_rows)
    columns = math.ceil(options.feature_share * rows.width - 1e-9) / rows.width
    factor = (chosen.rows * columns + explaining / options.explain_every) / plain.rows
    before = _LENGTH_BYTES * plain.lists + _EDGE_BYTES * plain.edges
    after = _LENGTH_BYTES * chosen.lists + (_EDGE_BYTES + _WEIGHT_BYTES) * chosen.edges + _TOTAL_BYTES * chosen.readers
    return Way("sampler: explained", factor, after / before if before else 1.0)


def _combined(ways: Sequence[Way]) -> Way:
    """Several ways at once: each saves as large a share of what the others have left."""
    first, others = ways[:1], ways[1:]
    what = " with ".join(filter(None, (" and ".join(each.what for each in some) for some in (first, others))))
    return Way(what, math.prod(way.factor for way in ways), math.prod(way.lists for way in ways))


@dataclass(frozen=True)
class _Rows:
    """Rows of features as they are stored."""

    width: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.width * self.itemsize

    @staticmethod
    def of(graph: Graph, field: str) -> "_Rows | None":
        """Of a graph of one type; None where it has no such field of numbers."""
        (nodes,) = graph.nodes.values()
        table = nodes.fields.get(field)
        return _Rows(table.shape[1], table.dtype.itemsize) if table is not None and table.ndim == 2 else None


class _Reads(NamedTuple):
    plain: RemoteReads
    """Of the job's own sampler."""
    chosen: RemoteReads | None
    """Of sampler explained, where it can take that one's place."""


def _reads(planned: PlannedRun, graph: Graph, seats: Sequence[int]) -> _Reads | None:
    """What batches read of other machines; None where drawing them needs more than the graph's lists."""
    cluster, job = planned.cluster, planned.profile.job
    if job.get("time") is not None or job.get("sampler") == "explained":
        return None
    part_of = parts_of(graph, cluster.partition, len(cluster.machines), cluster.method)
    batches = CountedBatches(graph, job, part_of, seats)
    chosen = None
    if job.get("sampler") == "neighbour":
        chosen = batches.explained(ExplainOptions().remote_bias)  # type: ignore[call-arg]
    return _Reads(batches.plain(CACHED), chosen)


def _with_transfers(profile: Profile, factors: Mapping[str, float], seats: Sequence[int]) -> Profile:
    """The profile with other bytes of some transfers from parts on other machines."""
    transfers = []
    for each in profile.transfers:
        factor = factors.get(each.name, 1.0)
        if factor != 1.0:
            changed = [
                [size if seat == part else factor * size for size, seat in zip(row, seats, strict=True)]
                for part, row in enumerate(each.bytes)
            ]
            each = each.model_copy(update={"bytes": changed})
        transfers.append(each)
    return profile.model_copy(update={"transfers": transfers})
