"""What sending fewer bytes of features would bring to a plan: fewer bits, a cache, fewer remote rows and columns.

Bytes are predicted from the profile and from how batches read remote rows (`remote_reads`), and the plan is simulated
again with them. What explanations read is counted, the processor time that they take is not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.cost.profile import Profile
from penstock.graph.graph import Graph
from penstock.partition.part_numbers import parts_of
from penstock.plan.comparison import Trial
from penstock.plan.document import Change
from penstock.plan.remote_reads import MachineReads, machine_reads
from penstock.plan.replica_changes import change_by
from penstock.plan.workloads import PlannedRun, workload_entry
from penstock.quantities import percent
from penstock.sampling.explained.options import ExplainOptions

CACHED = 0.1
"""Of the remote rows that a machine's lists name, the share whose cache is looked at."""
ROW_OVERHEAD = 25
"""Bytes that a cached row takes beside itself."""
_LIST_BYTES, _EDGE_BYTES, _WEIGHT_BYTES = 5, 4, 4
"""Bytes of a drawn list beside its edges, of an edge, and of an edge's weight, as they travel."""
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
    """Which ways help, in words; the simplest that comes near the best goes first."""
    useful = [change for change in changes if change.gain > 0]
    if not useful:
        return ""
    single = [change for change in useful if " with " not in change.what]
    best, first = useful[0], (single or useful)[0]
    cache = next((change for change in single if change.what.startswith("remote_cache_mb")), None)
    said = [f"Links limit this run: {first.what} alone would save {percent(first.gain)} of an iteration."]
    if cache is not None and cache is not first:
        said.append(f"A cache loses nothing and would save {percent(cache.gain)}.")
    explained = next((change for change in useful if change.what == "sampler: explained"), None)
    if explained is not None and explained is not first:
        said.append(f"sampler: explained would save {percent(explained.gain)}, less, and changes what is drawn.")
    if best is not first and best.gain > first.gain + _LEAST:
        said.append(f"The most would be saved by {best.what}: {percent(best.gain)}.")
    return " ".join(said)


def ways_of(planned: PlannedRun, seats: Sequence[int]) -> list[Way]:
    """The ways that the cluster and the job do not take yet, and their combinations; for graphs of one type."""
    cluster, job, graph = planned.cluster, planned.profile.job, planned.open_graph()
    if not graph.is_homogeneous or graph.num_edges > _MOST_EDGES:
        return []
    rows = _Rows.of(graph, str(job.get("features", "x")))
    if rows is None:
        return []
    reads = _reads(planned, graph, rows, seats)
    before = sum(each.rows for each in reads) or 1.0
    narrow, cache, explained = list[Way](), list[Way](), list[Way]()
    if cluster.wire_type == "stored" and rows.itemsize > 2:
        narrow.append(Way("wire_type: float16", 2 / rows.itemsize))
        narrow.append(Way("wire_type: int8", (rows.width + 4) / rows.nbytes))
    if not cluster.remote_cache_mb:
        size = CACHED * max(len(each.chances) for each in reads) * (rows.nbytes + ROW_OVERHEAD) / (1 << 20)
        cache.append(Way(f"remote_cache_mb: {size:.3g}", 1 - sum(each.hits(CACHED) for each in reads) / before))
    if job.get("sampler") == "neighbour":
        explained.append(_explained(reads, rows, before))
    int8 = narrow[-1:]
    several = [int8 + cache] + ([explained + int8, explained + int8 + cache] if explained and int8 else [])
    combined = {way.what: way for way in map(_combined, several)}
    return [*narrow, *cache, *explained, *(way for name, way in combined.items() if " with " in name)]


def _explained(reads: Sequence[MachineReads], rows: "_Rows", before: float) -> Way:
    """Sampler explained as it is by default, where batches read `before` remote rows without it.

    An explanation reads some remote rows, others every time, unless they are all that there are. Lists come with a
    weight for every edge.
    """
    options = ExplainOptions()  # type: ignore[call-arg]
    left = sum(each.rows_with_bias(options.remote_bias) for each in reads)
    explaining = sum(options.explain_rows for each in reads if len(each.chances) > options.explain_rows)
    factor = left * max(options.feature_share, 1 / rows.width) + explaining / options.explain_every
    draws = np.concatenate([each.near_share[0] for each in reads])
    edges = float(draws.mean()) if len(draws) else 0.0
    lists = 1 + edges * _WEIGHT_BYTES / (_LIST_BYTES + edges * _EDGE_BYTES)
    return Way("sampler: explained", factor / before, lists)


def _combined(ways: Sequence[Way]) -> Way:
    """Several ways at once: what a cache saves of narrow rows is as large a share of them."""
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


def _reads(planned: PlannedRun, graph: Graph, rows: _Rows, seats: Sequence[int]) -> list[MachineReads]:
    """Of every machine that has a worker and a part, how its worker's batches read remote rows."""
    cluster, profile = planned.cluster, planned.profile
    features = profile.transfer("features")
    assert features is not None
    row_bytes = {"stored": rows.nbytes, "float16": 2 * rows.width, "int8": rows.width + 4}[cluster.wire_type]
    remote = [
        sum(features.bytes[part][rank] for part in range(profile.parts) if part != seat) / row_bytes
        for rank, seat in enumerate(seats)
    ]
    fanouts = profile.job.get("fanouts") or [-1]
    part_of = parts_of(graph, cluster.partition, len(cluster.machines), cluster.method)
    return machine_reads(graph, part_of, -1 if -1 in fanouts else max(fanouts), remote, seats)


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
