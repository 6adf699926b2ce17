"""The bottleneck of a plan, in words, and the gain of changes: machines, links, replicas, fewer bytes of features."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from penstock.cost.profile import Profile
from penstock.cost.scaled_profile import seed_shares
from penstock.formatting import percent
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.hardware.cluster import MOST_REPLICAS, ClusterDocument, Machine, Replica
from penstock.hardware.machines import Machines, machines_of
from penstock.partition.assignment import parts_of
from penstock.pipeline.schedule import Planned, Schedule
from penstock.plan.comparison import Comparison, Trial, in_threads
from penstock.plan.document import Change
from penstock.plan.placement import Budget, Evaluator, place
from penstock.plan.workloads import WORKLOADS, PlannedRun
from penstock.progress import SILENT, Progress
from penstock.sampling import MiniBatch, NeighbourSampler
from penstock.sampling.entry import ExplainedSamplingOptions, ExplainInternals, SamplerSettings, plain_fanouts
from penstock.sampling.explained import CutNumbers, UnscoredLists
from penstock.sampling.local_source import LocalSource
from penstock.sampling.parts.homogeneous import share_of
from penstock.sampling.sampler_table import DEFAULT_SAMPLER, SAMPLERS, SamplerOptions, layer_count
from penstock.simulate.levels import CriticalStep, critical_path
from penstock.simulate.timeline import Timeline


def bottleneck_of(timeline: Timeline, placement: list[str], words: Mapping[str, str]) -> str:
    """A sentence about the longest part of the critical path.

    `placement` names every task's machine, and `words` describe what tasks of a kind do.
    """
    path = critical_path(timeline)
    total = sum(step.end - step.start for step in path) or 1.0
    # A flow's time counts to the task that waits for it and the link it crosses, a task's to its process.
    shares: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for step in path:
        shares[_owner(step, timeline, placement, words)] += (step.end - step.start) / total
    if not shares:
        return "Nothing takes any time."
    (who, verb, what), share = max(shares.items(), key=lambda item: item[1])
    waits = sum(amount for (_, verb, _), amount in shares.items() if verb == "waits")
    rest = f"Links make up {percent(waits)} of the critical path, tasks {percent(1 - waits)}."
    return f"{who} {verb} {percent(share)} of the time {what}. {rest}"


def _owner(
    step: CriticalStep, timeline: Timeline, placement: list[str], words: Mapping[str, str]
) -> tuple[str, str, str]:
    """(process, spends or waits, on or for what) of a step."""
    load, item = timeline.load, timeline.load.item_numbers[step.name]
    flow = item - load.tasks
    task = int(load.beside[item if flow < 0 else load.targets[flow]])
    who = f"{load.task_names[task]} on {placement[task]}"
    if flow < 0:
        return who, "spends", f"on {words.get(step.kind, step.kind)}"
    return who, "waits", f"for {_possessive(step.waited_for or _slowest_link(timeline, flow))}"


def _slowest_link(timeline: Timeline, flow: int) -> str:
    """The link of the least capacity on a flow's path."""
    routes, network = timeline.case.routes, timeline.network
    if routes.flow_path[flow] < 0:
        return "its own machine"
    crossed = routes.links_on(routes.paths[routes.flow_path[flow]])
    return network.link_names[int(min(crossed, key=lambda link: network.capacities[link]))]


def _possessive(link: str) -> str:
    """`m0 out` in plain words."""
    for ending, word in ((" out", "uplink"), (" in", "downlink"), (" up", "uplink"), (" down", "downlink")):
        if link.endswith(ending):
            return f"{link.removesuffix(ending)}'s {word}"
    return link


# The gain of one more machine, one more GPU or a faster link: the plan is made again for a cluster that has it.

_LEAST_GAIN = 0.005
"""A gain below this share counts as none: results of the search itself differ by as much."""


def changes_of(
    run: Comparison, best: Trial, budget: Budget, seed: int, progress: Progress, threads: int = 1
) -> list[Change]:
    """Every change by itself, planned with the same flow policy; the most useful first."""
    wanted = list(_changed(run.machines, best))
    if budget.simulations is None:
        budget = replace(budget, simulations=run.simulations)
    with progress.step("what if", len(wanted), "changes"):

        def planned(machines: Machines) -> float:
            seconds = planned_seconds(run, best, budget, seed, machines)
            progress.advance(1)
            return seconds

        found = in_threads([partial(planned, machines) for _, machines in wanted], threads)
    changes = []
    for (what, _), seconds in zip(wanted, found, strict=True):
        gain = 1 - seconds / best.iteration_s if best.iteration_s else 0.0
        changes.append(Change(what=what, iteration_s=seconds, gain=gain if gain > _LEAST_GAIN else 0.0))
    return sorted(changes, key=lambda change: -change.gain)


def planned_seconds(run: Comparison, best: Trial, budget: Budget, seed: int, machines: Machines) -> float:
    """Seconds per iteration on other machines, placed by the same policy; the present placement is one of the
    candidates.
    """
    run = run.on(machines)
    evaluator = Evaluator(run.problem, best.flows, run.iterations.searched)
    placed = place(evaluator, best.placed.policy, budget, seed)
    return min(
        trial.iteration_s for trial in run.trials([(each, best.flows) for each in (best.placed, placed)], SILENT)
    )


def _changed(machines: Machines, best: Trial) -> Iterator[tuple[str, Machines]]:
    """The busiest link twice as fast, one more of the fastest machine, and one more GPU where there are any."""
    count = len(machines.names)
    use = best.timeline.link_use[: 2 * count].reshape(2, count).max(0) if count > 1 else np.zeros(1)
    busiest, fastest = int(np.argmax(use)), int(np.argmax(machines.rates))
    yield f"a link twice as fast for {machines.names[busiest]}", machines.with_rate(busiest, 2)
    yield f"one more machine like {machines.names[fastest]}", machines.with_copy(fastest)
    gpus = machines.capacities.get("gpus", ())
    if any(gpus):
        yield f"one more GPU in {machines.names[fastest]}", machines.with_more("gpus", fastest, 1)


# What batches read from other machines, counted in batches that are drawn before a run. Batches are drawn from the
# whole graph with the sampler's own code and shared among workers as in a run: seeds ordered by part, in equal ranges.
# Counted are different remote rows of a batch, those of them that a cache would have, and the neighbour lists of remote
# vertices; and the same for sampler explained with equal scores, as nothing has been explained yet. That sampler reads
# fewer rows than its bias alone suggests: all lists of a hop see the same random number of a vertex and so agree on
# which to take.

_LEARNED = 16
"""Batches from which a worker learns which rows it reads most, as in a run."""
_COUNTED = 8
"""Batches after these, in which reads are counted."""


@dataclass(frozen=True)
class RemoteReads:
    """The mean reads of a batch from other machines, summed over workers."""

    rows: float
    """Different remote rows of each worker."""
    cache_hits: float
    """How many of these rows are in the workers' caches."""
    lists: float
    """Lists of remote vertices that are drawn from, at all hops."""
    edges: float
    """Edges drawn from them."""
    readers: float
    """Remote vertices whose lists are drawn from at the last hop."""
    halos: tuple[int, ...]
    """For every worker, the number of remote vertices in the lists of its machine's part."""


WorkerBatches = list[MiniBatch | None]
"""Each worker's share of one batch; None: it has no seed of it."""


class CountedBatches:
    """Batches of a job on a graph of one type, where worker r is on the machine with part `seats[r]`."""

    def __init__(self, graph: Graph, job: Mapping[str, Any], part_of: Array, seats: Sequence[int]) -> None:
        (nodes,), self._graph, self._part_of, self._seats = graph.nodes.values(), graph, part_of, seats
        given = nodes.splits.get("train", ())
        train = np.asarray(given if len(given) else np.arange(nodes.count))
        fields = {name: job[name] for name in SamplerOptions.model_fields if name in job}
        self._options = SamplerOptions.model_validate(fields)
        self._entry, layers = SAMPLERS[self._options.sampler], layer_count(self._options, job.get("layers") or 0)
        self._sampler = self._entry.build(
            LocalSource(graph, train), SamplerSettings(self._options, layers, 0, totals=False)
        )
        size = self._options.batch_size
        if self._entry.items_per_batch is not None:
            train, size = self._sampler.items, self._entry.items_per_batch(self._options)
        elif self._entry.batches_per_epoch is not None:
            size = max(1, -(-len(train) // self._entry.batches_per_epoch(self._options)))
        self._schedule = Schedule(train, size, 0)
        self._halos = tuple(_halo(graph, part_of, seat) for seat in seats)

    def plain(self, cached: float) -> RemoteReads:
        """Reads of the job's own sampler, where each worker caches a share of its halo's rows."""
        learned: list[list[Array]] = [[np.empty(0, np.int64)] for _ in self._seats]
        for batches in map(self._drawn, self._planned(0, _LEARNED)):
            for rank, rows in self._far_rows(batches):
                learned[rank].append(rows)
        kept = [_most_read(rows, round(cached * halo)) for rows, halo in zip(learned, self._halos, strict=True)]
        return self._counted(map(self._drawn, self._planned(_LEARNED, _COUNTED)), kept)

    def explained(self, bias: float) -> RemoteReads:
        """Reads of sampler explained with this `remote_bias`, before the first explanation; without a cache."""
        ((kind, edges),) = self._graph.edges.items()
        numbers = CutNumbers(self._part_of, 1 + int(self._part_of.max(initial=0)))
        plain = NeighbourSampler(self._graph, plain_fanouts(self._options))
        samplers = [plain.drawing_from({kind: UnscoredLists(edges, numbers, seat, bias)}) for seat in self._seats]

        def drawn(planned: Planned) -> WorkerBatches:
            shares = zip(samplers, self._shares(planned.seeds), strict=True)
            return [each.sample(planned.seeds[mine], planned.key) if len(mine) else None for each, mine in shares]

        return self._counted(map(drawn, self._planned(_LEARNED, _COUNTED)), [np.empty(0, np.int64)] * len(samplers))

    def _planned(self, first: int, count: int) -> Iterator[Planned]:
        return islice(self._schedule.from_position(), first, first + count)

    def _drawn(self, planned: Planned) -> WorkerBatches:
        """Every worker's share of a batch, as the job's sampler draws it."""
        if self._entry.joint:
            whole = self._sampler.sample(planned.seeds, planned.key)
            shares = self._shares(whole.seeds[whole.node_type])
            return [share_of(whole, mine) if len(mine) else None for mine in shares]
        seeds, key = planned.seeds, planned.key
        return [self._sampler.sample(seeds[mine], key) if len(mine) else None for mine in self._shares(seeds)]

    def _shares(self, seeds: Array) -> list[Array]:
        return seed_shares(seeds, self._part_of, len(self._seats))

    def _far_rows(self, batches: WorkerBatches) -> Iterator[tuple[int, Array]]:
        """The remote vertices of each worker that has a share."""
        for rank, batch in enumerate(batches):
            if batch is not None:
                vertices = batch.vertices[batch.node_type]
                yield rank, vertices[self._part_of[vertices] != self._seats[rank]]

    def _counted(self, drawn: Iterator[WorkerBatches], kept: Sequence[Array]) -> RemoteReads:
        found = np.zeros(5)
        for batches in drawn:
            for rank, rows in self._far_rows(batches):
                batch = batches[rank]
                assert batch is not None
                found += len(rows), np.isin(rows, kept[rank]).sum(), *self._lists(batch, self._seats[rank])
        rows, hits, lists, edges, readers = (found / _COUNTED).tolist()
        return RemoteReads(rows, hits, lists, edges, readers, self._halos)

    def _lists(self, batch: MiniBatch, seat: int) -> tuple[int, int, int]:
        """Numbers: of lists of remote vertices, of edges drawn from them, and of lists that the last hop draws from."""
        far = self._part_of[batch.vertices[batch.node_type]] != seat
        asked = [far[: block.num_dst] for block in batch.blocks]
        edges = sum(int(np.diff(block.indptr)[mine].sum()) for block, mine in zip(batch.blocks, asked, strict=True))
        return sum(int(mine.sum()) for mine in asked), edges, int(asked[0].sum())


def _most_read(rows: Sequence[Array], count: int) -> Array:
    """The `count` rows that are read most."""
    ids, reads = np.unique(np.concatenate(rows), return_counts=True)
    return np.asarray(ids[np.argsort(-reads, kind="stable")[:count]])


def _halo(graph: Graph, part_of: Array, part: int) -> int:
    """The number of other parts' vertices in the lists of a part."""
    (edges,) = graph.edges.values()
    members, named = np.flatnonzero(part_of == part), np.zeros(graph.num_nodes, np.bool_)
    first, lengths = edges.indptr[:-1][members], edges.indptr[1:][members] - edges.indptr[:-1][members]
    offsets = np.cumsum(lengths) - lengths
    named[edges.indices[np.arange(int(lengths.sum())) + np.repeat(first - offsets, lengths)]] = True
    return int((named & (part_of != part)).sum())


# The gain of a replica of a part's features on another machine, and of a plan's own replicas.

_MOST = 4
"""Machines that are tried for a replica: those with the fastest links."""


def replica_changes(planned: PlannedRun, best: Trial, seed: int) -> list[Change]:
    """The gain of a replica of the busiest part's features on some other machines; and the plan without its replicas.

    Tasks stay where the plan has them.
    """
    entry, cluster = WORKLOADS[planned.profile.mode], planned.cluster
    if not entry.uses_replicas or len(cluster.machines) < 2:
        return []
    changes = []
    if cluster.replicas:
        without = cluster.model_copy(update={"replicas": []})
        changes.append(change_by("without its replicas", planned, replace(planned, cluster=without), best, seed))
    part = _busiest_part(planned, best)
    taken = {each.machine for each in cluster.replicas if each.part == part} | {cluster.machines[part].name}
    if len(taken) <= MOST_REPLICAS:
        others = [machine.name for machine in _fastest(cluster, planned.profile.rate) if machine.name not in taken]
        for name in others[:_MOST]:
            more = cluster.model_copy(update={"replicas": [*cluster.replicas, Replica(part=part, machine=name)]})
            what = f"a replica of part {part}'s features on {name}"
            changes.append(change_by(what, planned, replace(planned, cluster=more), best, seed))
    return sorted(changes, key=lambda change: -change.gain)


def _fastest(cluster: ClusterDocument, rate: float) -> list[Machine]:
    rates = machines_of(cluster, rate).rates
    order = sorted(range(len(rates)), key=lambda number: -rates[number])
    return [cluster.machines[number] for number in order]


def _busiest_part(planned: PlannedRun, best: Trial) -> int:
    """The part whose machine's outgoing link is busiest."""
    use = dict(zip(best.timeline.network.link_names, best.timeline.link_use.tolist(), strict=True))
    return int(np.argmax([use.get(f"{machine.name} out", 0.0) for machine in planned.cluster.machines]))


def change_by(what: str, planned: PlannedRun, other: PlannedRun, best: Trial, seed: int) -> Change:
    """The change by another run instead of the planned one, with tasks where the best trial has them."""
    seated = with_seats(other, best)
    entry = WORKLOADS[planned.profile.mode]
    workload = entry.build(seated.profile, entry.set_up(seated))
    run = Comparison(workload, machines_of(other.cluster, planned.profile.rate), seed)
    seconds = tried_again(run, best).iteration_s
    gain = 1 - seconds / best.iteration_s if best.iteration_s else 0.0
    return Change(what=what, iteration_s=seconds, gain=gain)


def with_seats(planned: PlannedRun, best: Trial) -> PlannedRun:
    """The run with its workers where a trial has them: what comes from replicas depends on which are local."""
    where = _machine_by_task(best)
    return replace(planned, seats=tuple(where[f"worker-{rank}"] for rank in range(planned.profile.workers)))


def tried_again(run: Comparison, best: Trial) -> Trial:
    """The workload with every task on the machine where a trial places it."""
    where, load = _machine_by_task(best), run.load
    # What is beside a task follows it.
    places = np.array([where[load.task_names[beside]] for beside in load.beside], best.placed.machine_of.dtype)
    return run.trial(replace(best.placed, machine_of=places), best.flows)


def _machine_by_task(best: Trial) -> dict[str, int]:
    return dict(zip(best.timeline.load.task_names, best.placed.machine_of.tolist(), strict=True))


# The gain of sending fewer bytes of features: narrower numbers, a cache, fewer remote rows and columns. Bytes are
# predicted from the profile and from batches that are drawn for it (`CountedBatches`), and the plan is simulated again
# with them. What explanations read is counted, but not their CPU time.

CACHED = 0.1
"""The share of the remote rows in a machine's lists that the considered cache holds."""
ROW_OVERHEAD = 25
"""Bytes that a cached row takes beside itself."""
_LENGTH_BYTES, _EDGE_BYTES, _WEIGHT_BYTES, _TOTAL_BYTES = 1, 4, 4, 4
"""Bytes on the wire of a drawn list's length, of an edge, of its weight, and of a whole list's length."""
_LEAST = 0.02
"""Smaller gains are not reported."""
_MOST_EDGES = 200_000_000
"""Larger graphs are not counted for advice."""


@dataclass(frozen=True)
class Way:
    """A way to send fewer bytes: the setting, and its factors on the bytes of features and of neighbour lists."""

    what: str
    factor: float
    lists: float = 1.0


def transport_changes(planned: PlannedRun, best: Trial, seed: int) -> list[Change]:
    """Each way by itself and in combinations, the most useful first; none where nothing is sent over links."""
    features = planned.profile.transfer("features")
    pulls = WORKLOADS[planned.profile.mode].uses_replicas and features is not None
    if not pulls or not planned.has_graph or len(planned.cluster.machines) < 2:
        return []
    assert features is not None
    where = _machine_by_task(best)
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
    """Advice in words: the best single way, then the others in order, then a combination that saves more."""
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
    """A remark on a way to send fewer bytes, with how much it saves."""
    remarks = {"remote_cache_mb": ", lossless", "sampler: explained": ", changes what is drawn"}
    return next((remark for start, remark in remarks.items() if change.what.startswith(start)), "")


def ways_of(planned: PlannedRun, seats: Sequence[int]) -> list[Way]:
    """The ways that the cluster and the job do not use yet, and their combinations; for graphs of one type."""
    cluster, job, graph = planned.cluster, planned.profile.job, planned.open_graph()
    if not graph.is_homogeneous or graph.num_edges > _MOST_EDGES:
        return []
    (nodes,) = graph.nodes.values()
    table = nodes.fields.get(str(job.get("features", "x")))
    if table is None or table.ndim != 2:
        return []
    width, size = table.shape[1], table.dtype.itemsize
    narrow, cache, explained = list[Way](), list[Way](), list[Way]()
    if cluster.wire_type == "stored" and size > 2:
        narrow.append(Way("wire_type: float16", 2 / size))
        narrow.append(Way("wire_type: int8", (width + 4) / (width * size)))
    plain, chosen = _reads(planned, graph, seats)
    if plain is not None and plain.rows:
        if not cluster.remote_cache_mb:
            mib = CACHED * max(plain.halos) * (width * size + ROW_OVERHEAD) / (1 << 20)
            cache.append(Way(f"remote_cache_mb: {mib:.3g}", 1 - plain.cache_hits / plain.rows))
        if chosen is not None:
            explained.append(_explained(plain, chosen, width))
    int8 = narrow[-1:]
    # Rows of some columns have scales of their own and are not cached.
    several = [each for each in (int8 + cache, explained + int8) if len(each) > 1]
    return [*narrow, *cache, *explained, *map(_combined, several)]


def _explained(plain: RemoteReads, chosen: RemoteReads, width: int) -> Way:
    """Sampler explained with default settings, whose batches read `chosen` where plain ones read `plain`.

    An explanation reads some remote rows, different ones each time unless it reads all. Lists come with a weight for
    every edge, and with the lengths of the whole lists of all rows that the last hop reads.
    """
    options, read = ExplainedSamplingOptions(), ExplainInternals().explain_rows  # type: ignore[call-arg]
    explaining = sum(read for halo in plain.halos if halo > read)
    columns = math.ceil(options.feature_share * width - 1e-9) / width
    factor = (chosen.rows * columns + explaining / options.explain_every) / plain.rows
    before = _LENGTH_BYTES * plain.lists + _EDGE_BYTES * plain.edges
    after = _LENGTH_BYTES * chosen.lists + (_EDGE_BYTES + _WEIGHT_BYTES) * chosen.edges + _TOTAL_BYTES * chosen.readers
    return Way("sampler: explained", factor, after / before if before else 1.0)


def _combined(ways: Sequence[Way]) -> Way:
    """Several ways at once: each saves its share of what the others leave."""
    first, others = ways[:1], ways[1:]
    what = " with ".join(filter(None, (" and ".join(each.what for each in some) for some in (first, others))))
    return Way(what, math.prod(way.factor for way in ways), math.prod(way.lists for way in ways))


def _reads(planned: PlannedRun, graph: Graph, seats: Sequence[int]) -> tuple[RemoteReads | None, RemoteReads | None]:
    """What batches of the job's own sampler read from other machines, and those of sampler explained, if it can replace
    that one; None where drawing them needs more than the graph's lists.
    """
    cluster, job = planned.cluster, planned.profile.job
    sampler = SAMPLERS[str(job.get("sampler", DEFAULT_SAMPLER))]
    if job.get("time") is not None or sampler.local:
        return None, None
    part_of = parts_of(graph, cluster.partition, len(cluster.machines), cluster.method)
    batches = CountedBatches(graph, job, part_of, seats)
    chosen = None
    if sampler.has_explained_form:
        chosen = batches.explained(ExplainedSamplingOptions().remote_bias)  # type: ignore[call-arg]
    return batches.plain(CACHED), chosen


def _with_transfers(profile: Profile, factors: Mapping[str, float], seats: Sequence[int]) -> Profile:
    """The profile with the bytes of some transfers from parts on other machines multiplied by factors."""
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
