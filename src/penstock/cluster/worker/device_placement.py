"""A worker's session on its GPU: with the whole graph there where it may be, else with the model alone."""

from dataclasses import replace

import torch

from penstock.cluster.worker.cut_graph import CutGraph, Parts
from penstock.cluster.worker.device_prediction import WorkerPrediction
from penstock.cluster.worker.gathered_graph import gathered_graph, list_bytes
from penstock.cluster.worker.row_cache import cache_bytes, row_bytes, with_cached_rows
from penstock.errors import PenstockError
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Schedule
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.plan.residence import usable
from penstock.sampling.device.neighbours import DeviceNeighbourSampler
from penstock.train.device.decision import Decision, decide, untraced_sentence
from penstock.train.device.placed import Placed
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.device.share_supply import Share, ShareOfSchedule
from penstock.train.device_memory import device_memory_of
from penstock.train.execution.support import SHARED_DEVICE_SAMPLING, demands_of, reasons_against
from penstock.train.job import Job
from penstock.train.run_context import device_peak
from penstock.train.session import Session

_ON_DEVICE = ("auto", "device")
_ONE_BY_ONE = "Steps are launched one by one: between two the workers sum their gradients."


def check_for_gpus(job: Job, served: bool, learnable: bool) -> None:
    """Refuse what a GPU does only for a machine of its own; `learnable`: embeddings are at their owners."""
    wish = job.placed
    if job.sample_on == "hybrid":
        raise PenstockError(
            "sample_on hybrid is for one machine: on several machines use auto, device or host.",
            code="unsupported-combination",
        )
    if "pinned" in (wish.topology, wish.features):
        raise PenstockError(
            "On several machines a worker has the graph on its GPU or leaves it with the stores, and nothing in pinned"
            " memory: set placement to auto, device or host.",
            code="unsupported-combination",
        )
    if wish.cache_rows and ("device" in (wish.topology, wish.features) or wish.cache_by != "counts"):
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
    """Put the graph on the worker's GPU where it fits, and let batches find it.

    `share` takes the worker's seeds of a batch, and `part` is how much of the batches that its task samples it gets:
    one that takes its share when it samples has done so in the trial too. Once a run has begun (it is not `fresh`),
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
    why = [f"The graph stays with the stores, and the host draws batches and asks for rows: {', '.join(reasons)}."]
    placed = Placed.of(session.job, session.inputs.device, _at_the_stores(session, prediction, why))
    if placed.decision.residence.cache_rows:
        placed.cached = {name: with_cached_rows(session, share) for name in session.inputs.sources}
    return bring_batches(session, placed)


def _is_asked_for(job: Job) -> bool:
    """Whether a job wants what only a graph on the GPU gives."""
    wish = job.placed
    return "device" in (wish.topology, wish.features, job.sample_on) or job.feature_type != "stored"


def against_whole_graph(session: Session, parts: Parts) -> list[str]:
    """Why the graph is not brought to the worker's GPU; empty where it may be."""
    job = session.job
    wish = job.placed
    reasons = reasons_against(SHARED_DEVICE_SAMPLING, demands_of(session))
    if job.sample_on == "host" or not {wish.topology, wish.features} <= set(_ON_DEVICE):
        reasons.append("the job keeps it on the host")
    if wish.cache_rows:
        reasons.append("the job asks for a cache of rows")
    if session.inputs.tables:
        reasons.append("embeddings are at their owners")
    far = len(parts.owned) < parts.partition.parts
    if far and not (wish.topology == wish.features == "device"):
        reasons.append("parts of it are on other machines (placement device brings them here)")
    # Before the lists are read into this process's memory, which they would fill in vain.
    if not reasons and list_bytes(_cut_graph(session)) > torch.cuda.mem_get_info(session.inputs.device)[0]:
        reasons.append("its neighbour lists alone exceed the GPU's free memory")
    return reasons


def _cut_graph(session: Session) -> CutGraph:
    assert isinstance(session.graph, CutGraph)
    return session.graph


def _with_whole_graph(
    session: Session, parts: Parts, shares: ShareOfSchedule, prediction: WorkerPrediction
) -> Placed | None:
    """The lists and features on the GPU; None where they have no room."""
    whole = replace(session, graph=gathered_graph(parts, _cut_graph(session), session.inputs.fields))
    decision = prediction.with_whole_graph(whole, lambda memory: decide(whole, shares, memory))
    if (decision.residence.topology, decision.residence.features) != ("device", "device"):
        return None
    placed = place_as_decided(whole, decision, shares)
    sampler = DeviceNeighbourSampler(
        placed.topology,
        placed.fanouts,
        placed.device,
        getattr(session.task, "node_type", "node"),
        placed.replace,
        placed.totals,
        room=placed.room,
    )

    def sample(planned: Planned) -> Batch:
        return sampler.sample(planned.seeds, planned.key)

    placed.sample = sample
    # Inference among workers goes by the numbers of the cut graph, which these tables do not: it keeps its own sources.
    return bring_batches(session, placed)


def _at_the_stores(session: Session, prediction: WorkerPrediction, why: list[str]) -> Decision:
    """Nothing of the graph is on the GPU but a cache that was asked for; it and training must fit."""
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
    return Decision(residence, working, None, False, False, why, predicted_by=method, untraced=untraced)
