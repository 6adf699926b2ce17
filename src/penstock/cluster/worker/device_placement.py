"""A worker's session on its GPU: with the whole graph there if possible, else with the model only."""

import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from penstock.cluster.member import Member
from penstock.cluster.worker.batch_source import read_counts
from penstock.cluster.worker.cut_graph import CutGraph, PartedColumn, Parts, gathered_graph, list_bytes
from penstock.cluster.worker.gpu_shares import GpuShares
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned, Schedule
from penstock.pipeline.stages import Batch
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.plan.residence import usable
from penstock.sampling.device.sampler import DeviceSampler
from penstock.store.device.copies import SharedMemory, pinned_once, to_device
from penstock.store.device.shards import GpuGroup, reason_against_sharing, shared_by_gpus
from penstock.store.device.tables import ResidentTable
from penstock.store.rows import by_counts
from penstock.store.source import CachedSource, RowSource, cached_source
from penstock.trace.allocations import UntraceableError
from penstock.train.device.decision import PlacementDecision, decide, untraced_sentence
from penstock.train.device.memory import (
    NOTHING,
    Load,
    MemoryModel,
    StepMemory,
    TrialMemory,
    Working,
    loaded_working,
    read_place,
    row_type,
    tried_steps,
)
from penstock.train.device.placed import Placed
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.device.traced import SUMMED_BYTES, SharedTrace
from penstock.train.execution.support import SHARED_DEVICE_SAMPLING, demands_of, reasons_against
from penstock.train.job import Job
from penstock.train.run_context import device_memory_of, device_peak
from penstock.train.session import Session
from penstock.train.steps.sources import Share, ShareOfSchedule
from penstock.wire.message import Message

# The GPU memory that a worker's steps take, predicted by a trace, or by trial steps where that is not possible. A
# worker that has the whole graph computes like a single GPU whose batches are the worker's shares, so that is traced.
# One whose graph stays with the stores launches steps on batches that the host draws and gathers.

_EMBEDDINGS = "embeddings are at their owners, which serve only real steps"


class WorkerPrediction:
    """Predicts the memory of one worker.

    `part` is the worker's share of the batches that its task samples, and `fresh` whether the run has not begun.
    """

    def __init__(self, session: Session, shares: ShareOfSchedule, part: float, fresh: bool) -> None:
        self._session, self._shares, self._part, self._fresh = session, shares, part, fresh
        parameters = sum(each.numel() for each in session.learned.parameters())
        self._parameters, self._summed = parameters, SUMMED_BYTES * parameters if part < 1 else 0

    def with_whole_graph(self, whole: Session, decide: Callable[[MemoryModel], PlacementDecision]) -> PlacementDecision:
        """The decision for a session that has the whole graph."""
        try:
            return decide(self._traced(whole))
        except UntraceableError as error:
            return decide(TrialMemory(whole, self._tried(), str(error)))

    def at_the_stores(self) -> tuple[Working, str, str]:
        """The memory of steps without the graph, the method, and why it was not traced."""
        job, as_rows = self._session.job, row_type(self._session.job)
        nowhere = Residence("host", "host", 0, 0, 0, [])
        try:
            traced = self._traced(self._session)
            peak = traced.traced(PlacementDecision(nowhere, Working(0, as_rows, {}), None, False, False, []))
            return Working(peak.reserved + self._summed, as_rows, peak.categories), traced.method, ""
        except UntraceableError as error:
            step, ahead = self._tried(), job.transfer_depth + 1
            return loaded_working(step, None, 0, ahead, self._parameters, as_rows), TrialMemory.method, str(error)

    def _traced(self, session: Session) -> "SharedTrace":
        if self._session.inputs.tables:
            raise UntraceableError(_EMBEDDINGS)
        alone = Schedule(session.task.items, self._shares.batch_size, session.job.draw_seed)
        # Without the graph a validation has one chunk at a time, which is less than a step.
        return SharedTrace(session, alone, self._shares, self._summed, validated=session is not self._session)

    def _tried(self) -> StepMemory:
        """The memory of a worker's share of a step, from trial steps."""
        session, step = self._session, NOTHING
        if self._fresh:
            step = tried_steps(session, row_type(session.job))
        # Once a run has begun, learnable rows are past the step that a trial would read.
        elif not session.inputs.tables:
            # A restarted worker does not wait for a store that may be lost too: its prediction is only less exact.
            with suppress(PenstockError):
                step = tried_steps(session, row_type(session.job))
        whole = Load(*(round(self._part * amount) for amount in step.whole))
        return step._replace(fixed=step.fixed + self._summed, whole=whole)


# The rows of a partitioned graph that a worker reads most, cached on its GPU; all others are requested from their
# owners.


def cache_bytes(session: Session) -> int:
    """Bytes of the job's `cache_rows` on the GPU; an error where the graph has no such rows."""
    rows, source = session.job.placed.cache_rows or 0, _only_source(session)
    if rows > source.shape[0]:
        raise PenstockError(
            f"cache_rows is {rows:,} of {source.shape[0]:,} rows: give 0 to {source.shape[0]:,}.",
            code="value-out-of-range",
        )
    return rows * row_bytes(session)


def row_bytes(session: Session) -> int:
    """Bytes of one cached row."""
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
    if session.inputs.no_table:
        raise PenstockError(
            "cache_rows is for stored features of graphs with one node type and one edge type: leave it out of"
            " `placement`.",
            code="unsupported-combination",
        )
    (only,) = session.inputs.sources.values()
    return only


_ONE_BY_ONE = "Steps are launched one by one: between two the workers sum their gradients."


def is_far(parts: Parts) -> bool:
    """Whether some parts are on other machines."""
    return len(parts.owned) < parts.partition.parts


def check_for_gpus(job: Job, served: bool, learnable: bool, far: bool, cut: bool) -> None:
    """Refuse options that a GPU supports only on a single machine; `learnable`: embeddings are at their owners; `far`:
    parts are on other machines; `cut`: the graph is in parts.
    """
    wish = job.placed
    if job.sample_on == "hybrid":
        raise PenstockError(
            "sample_on hybrid is for one machine: on several machines use auto, device or host.",
            code="unsupported-combination",
        )
    if wish.features == "sharded" and cut:
        raise PenstockError(
            "Features are sharded over the GPUs of one host whose graph is not cut: train with gpus, or with a cluster"
            " of one machine whose method is none.",
            code="unsupported-combination",
        )
    if far and "pinned" in (wish.topology, wish.features):
        raise PenstockError(
            "On several machines a worker has the graph on its GPU or leaves it with the stores, and nothing in pinned"
            " memory: set placement to auto, device or host.",
            code="unsupported-combination",
        )
    if (
        wish.cache_rows
        and wish.features not in ("pinned", "sharded")
        and ("device" in (wish.topology, wish.features) or wish.cache_by != "counts")
    ):
        raise PenstockError(
            "On several machines cache_rows keeps rows that a worker reads most on its GPU, and all others with the"
            " stores: leave out cache_by, and set topology and features to auto or host.",
            code="unsupported-combination",
        )
    if job.compute_type == "float16" and (served or learnable):
        raise PenstockError(
            "compute_type float16 skips steps that overflow, which parameter servers and owners of embeddings cannot"
            " undo: use bfloat16.",
            code="unsupported-combination",
        )


def place_on_worker(session: Session, parts: Parts, share: Share, part: float, fresh: bool) -> Placed:
    """Place the graph on the worker's GPU if it fits, and connect its batches to it.

    `share` takes the worker's seeds of a batch, and `part` is its share of the batches that its task samples: a task
    that takes its share while sampling has done so in the trial too. Once a run has begun (it is not `fresh`),
    learnable rows are past the step that a trial would read.
    """
    session.device_peak = device_peak(session.inputs.device)
    shares = ShareOfSchedule(Schedule(session.task.items, session.task.batch_size, session.job.draw_seed), share)
    prediction = WorkerPrediction(session, shares, part, fresh)
    reasons = against_whole_graph(session, parts)
    if not reasons:
        placed = _with_whole_graph(session, parts, shares, prediction)
        if placed is not None:
            return placed
        reasons = ["the GPU has no room for all of it"]
    if _is_asked_for(session.job):
        raise PenstockError(
            f"The graph cannot be placed on each worker's GPU: {', '.join(reasons)}. Leave out placement, sample_on and"
            " feature_type.",
            code="unsupported-combination",
        )
    why = [f"The graph stays with the stores, and the host draws batches and requests rows: {', '.join(reasons)}."]
    placed = Placed.of(session, _at_the_stores(session, prediction, why))
    if placed.decision.residence.cache_rows:
        placed.cached = {name: with_cached_rows(session, share) for name in session.inputs.sources}
    return bring_batches(session, placed)


def _is_asked_for(job: Job) -> bool:
    """Whether a job asks for something that needs the graph on the GPU."""
    wish = job.placed
    places = {wish.topology, wish.features, job.sample_on}
    return not places.isdisjoint({"device", "sharded", "pinned"}) or job.feature_type != "stored"


def against_whole_graph(session: Session, parts: Parts) -> list[str]:
    """The reasons why the graph is not copied to the worker's GPU; empty where it may be."""
    job = session.job
    wish = job.placed
    reasons = reasons_against(SHARED_DEVICE_SAMPLING, demands_of(session))
    if job.sample_on == "host" or "host" in (wish.topology, wish.features):
        reasons.append("the job keeps it on the host")
    if wish.cache_rows and wish.features not in ("pinned", "sharded"):
        reasons.append("the job asks for a cache of rows")
    if session.inputs.tables:
        reasons.append("embeddings are at their owners")
    if is_far(parts) and not (wish.topology == wish.features == "device"):
        reasons.append("parts of it are on other machines (placement device brings them here)")
    # Checked before the lists are read into this process's memory in vain.
    if (
        not reasons
        and not parts.partition.is_uncut
        and list_bytes(_cut_graph(session)) > torch.cuda.mem_get_info(session.inputs.device)[0]
    ):
        reasons.append("its neighbour lists alone exceed the GPU's free memory")
    return reasons


def _cut_graph(session: Session) -> CutGraph:
    assert isinstance(session.graph, CutGraph)
    return session.graph


def _with_whole_graph(
    session: Session, parts: Parts, shares: ShareOfSchedule, prediction: WorkerPrediction
) -> Placed | None:
    """Place the lists and features on the GPU, or in pinned memory that all workers of the machine share; None where
    they do not fit.
    """
    whole = replace(session, graph=gathered_graph(parts, _cut_graph(session), session.inputs.fields))

    def decided() -> PlacementDecision:
        return prediction.with_whole_graph(whole, lambda memory: decide(whole, shares, memory))

    with pinned_once(None if is_far(parts) else _memory_of_machine(parts.member)):
        decision, group = _decided_together(whole, parts, decided)
        places = {decision.residence.topology, decision.residence.features}
        if "host" in places or (is_far(parts) and "pinned" in places):
            return None
        with shared_by_gpus(group):
            placed = place_as_decided(whole, decision, shares)
    node_type = getattr(session.task, "node_type", "node")
    sampler = DeviceSampler(placed.topology, placed.program, placed.device, node_type, placed.totals, room=placed.room)

    def sample(planned: Planned) -> Batch:
        return sampler.sample(planned.seeds, planned.key)

    placed.sample = sample
    # Inference among workers uses the partitioned graph's numbers, which these tables do not have: it keeps its own
    # sources.
    return bring_batches(session, placed)


def _decided_together(
    whole: Session, parts: Parts, decide_here: Callable[[], PlacementDecision]
) -> tuple[PlacementDecision, GpuGroup | None]:
    """The decision, and the GPUs that hold the features together if the workers of one host agree on that: because the
    job asks for it, or because not every GPU has room for all features and each has room for a share.
    """
    member, job = parts.member, whole.job
    asked = job.placed.features == "sharded"
    is_open = read_place(job) == "auto" and not job.placed.cache_rows
    if not parts.partition.is_uncut or member.setup.layout.world == 1 or not (asked or is_open):
        return decide_here(), None
    others = GpuShares(member)
    group = others.group()

    def decide_shared() -> PlacementDecision:
        with shared_by_gpus(group):
            return decide_here()

    if group.held:
        # It was decided before this worker was lost.
        return decide_shared(), group
    if asked:
        if reason := reason_against_sharing(whole.inputs.device, group, others.agree):
            raise PenstockError(
                f"The features cannot be sharded over the GPUs of this host ({reason}): set features to auto.",
                code="not-available",
            )
        return decide_shared(), group
    alone = decide_here()
    if not any(others.agree("features fit", lambda: "" if alone.residence.features == "device" else "no")):
        return alone, None
    reason = reason_against_sharing(whole.inputs.device, group, others.agree)
    if not reason:
        shared = decide_shared()
        # With the topology on the host nothing would be placed, and the others would wait for this worker's share.
        fits = shared.residence.shared and shared.residence.topology != "host"
        found = others.agree("shares fit", lambda: "" if fits else "no room for its share")
        if not any(found):
            return shared, group
        reason = next(f"GPU {rank} has {each}" for rank, each in enumerate(found) if each)
    return replace(alone, why=[*alone.why, f"The features are not sharded over the GPUs: {reason}."]), None


def _memory_of_machine(member: Member) -> SharedMemory:
    """Memory that the workers of this machine share, which their store keeps."""
    setup, store = member.setup, f"store-{member.setup.task.machine}"
    channel = member.endpoint.channel(store, "lists", 1)

    def mapped(name: str, size: int) -> Array:
        path = Path(str(channel.call(Message("memory", {"name": name, "bytes": size})).body["path"]))
        try:
            with path.open("r+b") as file:
                return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        except OSError as error:
            raise PenstockError(
                f"Memory that {store} keeps for all workers of its machine cannot be mapped ({error}): set"
                " placement to device or host.",
                code="not-permitted",
            ) from None

    def held() -> int:
        return int(channel.call(Message("memory-held")).body["bytes"])

    ranks = [task.rank for task in setup.layout.of_kind("worker") if task.machine == setup.task.machine]
    return SharedMemory(mapped, held, ranks.index(setup.task.rank), len(ranks))


def _at_the_stores(session: Session, prediction: WorkerPrediction, why: list[str]) -> PlacementDecision:
    """The decision with nothing of the graph on the GPU but a requested cache; both must fit beside training."""
    job, device, rows = session.job, session.inputs.device, session.job.placed.cache_rows or 0
    working, method, untraced = prediction.at_the_stores()
    free, total = device_memory_of(device)
    sizes = Sizes(0, 0, 1, 0, working.bytes, free, total, 0)
    residence: Residence = decide_residence(sizes, Wanted("host", "host", 0, job.device_share))
    if rows:
        taken, left = cache_bytes(session), usable(sizes, job.device_share) - working.bytes
        if taken > left:
            raise PenstockError(
                f"cache_rows is {rows:,}, which take {taken / 1e9:.1f} GB, and the GPU has {left / 1e9:.1f} GB beside"
                f" training: set it to at most {left // row_bytes(session):,}.",
                code="out-of-memory",
            )
        residence = replace(residence, cache_rows=rows, device_bytes=residence.device_bytes + taken)
        why = [*why, f"The {rows:,} rows that are read most are on the GPU."]
    why = [*why, _ONE_BY_ONE, *([untraced_sentence(untraced)] if untraced else [])]
    return PlacementDecision(residence, working, None, False, False, why, predicted_by=method, untraced=untraced)
