"""Measures what a job's iterations cost on the real system: every task of a cluster, on this host."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.cluster.controller import Controller, TaskRecord
from penstock.cluster.launch import make_launcher
from penstock.cluster.run import cut_for, template_of
from penstock.cluster.tasks.worker import WARMING
from penstock.cost.profile import CostSpread, MemoryUse, OperatorCost, Profile, TransferCost, deciding
from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.arrays import Array
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.hardware.machines import check_device, chosen_for_plan
from penstock.memory import resident_mb
from penstock.partition import open_partition
from penstock.plan.workloads import workload_of
from penstock.plan.workloads.mini_batch import conditions
from penstock.plan.workloads.whole_section import BACKWARD, FORWARD, MESSAGE, operator_name
from penstock.processes import polite_interrupt
from penstock.progress import Progress
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.auto_values import with_order_costs
from penstock.train.build import make_session
from penstock.train.job import Job
from penstock.train.run_context import run_context
from penstock.train.run_files.run_folder import RunFolder, found_anywhere
from penstock.train.whole.measured import MeasuredBin, measure_bins
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.transport.tls import make_credentials

# The CPU time of a message of rows at both its ends, measured between two endpoints of this process.

_WIDTH = 64
_ROWS = (16, 512, 4096)
"""Rows of the messages that are measured: 4 KiB, 128 KiB and 1 MiB."""
_MESSAGES = 64
"""Messages of one measurement. They are sent one after the other, so that each wakes the threads of both ends, as the
messages between bins do.
"""
_SENDER, _READER = "sender", "reader"


def measure_messages(repeats: int) -> Iterator[tuple[int, float]]:
    """Bytes of a message, and the least mean CPU seconds for each over so many measurements.

    Rows are gathered from a level, sent, and written into another level, as in whole-graph training.
    """
    keys = make_credentials([_SENDER, _READER])
    with Endpoint(keys[_SENDER]) as sender, Endpoint(keys[_READER]) as reader:
        sender.meet(_READER, reader.address)
        channel = sender.channel(_READER, "rows", 0)
        level, to = torch.zeros(2 * max(_ROWS), _WIDTH), torch.zeros(max(_ROWS), _WIDTH)

        def receive(message: Message, who: str) -> Message:
            rows = np.array(message.arrays[0])
            to[: len(rows)] = torch.from_numpy(rows)
            return Message("heard")

        reader.serve("rows", receive, at_once=True)
        for count in _ROWS:
            places = torch.arange(0, 2 * count, 2)

            def send(number: int, places: torch.Tensor = places) -> None:
                for _ in range(number):
                    channel.call(Message("rows", {}, (level.index_select(0, places).numpy(),)))

            send(1)
            yield 4 * _WIDTH * count, min(_seconds(lambda: send(_MESSAGES)) / _MESSAGES for _ in range(repeats))


def _seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


# The profile of a job that trains on the whole graph: bins are computed on this host, by one process. A bin's time
# depends on its rows, edges and inputs, and a plan counts them in its own parts. So one process is measured, and the
# profile serves clusters of every size. Messages are measured between two endpoints of that process, which includes the
# time of both ends.

_MOST_REPEATS = 5
"""The most computations of a bin, however many iterations are asked for."""


def profile_whole(job: Job, device: str, iterations: int, progress: Progress) -> Profile:
    """Measure forward and backward passes of some bins of every layer, and messages of rows, by size."""
    measured = job.model_copy(update={"threads": 1, "device": device, "epochs": max(job.epochs, 1)})
    repeats = min(iterations, _MOST_REPEATS)
    with run_context(measured), progress.step("measuring bins"):
        session = make_session(measured)
        messages = list(measure_messages(repeats))
        found = {(each.layer, each.rows, each.edges): each for each in measure_bins(session, repeats)}
        weights = sum(each.numel() * each.element_size() for each in session.learned.parameters())
        held = resident_mb() / 1024
    operators = [cost for each in found.values() for cost in _bin_operators(each, device, repeats)]
    operators += [
        OperatorCost(name=MESSAGE, sizes={"bytes": float(size)}, iterations=repeats, seconds=CostSpread(mean=seconds))
        for size, seconds in messages
    ]
    return Profile(
        mode=workload_of(job.sampler).mode,
        job=deciding(job.model_dump(mode="json")),
        iterations=repeats,
        batches=job.steps_per_epoch,
        parts=1,
        workers=1,
        operators=operators,
        transfers=[TransferCost(name="gradients", source="model", target="model", bytes=[[float(weights)]])],
        memory=[MemoryUse(process="worker", gb=held)],
    )


def _bin_operators(measured: MeasuredBin, device: str, repeats: int) -> list[OperatorCost]:
    at = {name: float(getattr(measured, name)) for name in ("rows", "edges", "inputs", "width_in", "width_out")}
    return [
        OperatorCost(
            name=operator_name(way, measured.layer),
            device=device,
            sizes=at,
            iterations=repeats,
            seconds=CostSpread(mean=seconds),
            cores=1,
        )
        for way, seconds in ((FORWARD, measured.forward_s), (BACKWARD, measured.backward_s))
    ]


_SEATS = "workers-of-the-profile"
_SMALLER = 4
"""How many times smaller batches are in a second measurement."""
_MOST = 256
"""Workers on one machine."""


def profile_job(job: Job, cluster: ClusterDocument, iterations: int, progress: Progress) -> Profile:
    """The measured profile of a job, by its execution mode."""
    job = with_order_costs(job.model_copy(update=found_anywhere(job)))
    return _MEASURED_BY[workload_of(job.sampler).mode](job, cluster, iterations, progress)


def _profile_bins(job: Job, cluster: ClusterDocument, iterations: int, progress: Progress) -> Profile:
    return profile_whole(job, _device(job, cluster, progress), iterations, progress)


def _profile_mini_batches(job: Job, cluster: ClusterDocument, iterations: int, progress: Progress) -> Profile:
    """Train for some iterations with the cluster's parts and workers, all on this host; the run is discarded.

    Workers share no machine with a part, so that all their reads are counted, unless their sampler depends on what is
    local; and they draw their batches themselves. CPU time is measured with one thread each: a machine's `speed` in the
    cluster file scales it. Steps are measured on GPUs where the job or the cluster asks for them and this host has one.
    """
    own = {"threads": 1, "epochs": max(job.epochs, iterations + WARMING + 1), "evaluate_every": -1, "sample_threads": 1}
    entry = SAMPLERS[job.sampler]
    own |= entry.settled
    with tempfile.TemporaryDirectory(prefix="penstock-profile-") as place:
        device = _device(job, cluster, progress)
        # The plan's roles: stores hold the graph, hosts draw batches and gather rows, devices compute steps.
        on_host = {"placement": "auto", "sample_on": "host", "feature_type": "stored"} if device == "cuda" else {}
        measured = job.model_copy(update={**own, **on_host, "device": device, "run": str(Path(place) / "run")})
        folder = RunFolder.create(measured, "profile", force=False)
        try:
            bench = _bench(cluster, cut_for(measured, cluster.model_copy(), folder, progress), entry.local)
            controller = _carried_out(measured, bench, folder, iterations, progress)
        finally:
            folder.close()
        smaller = _measure_smaller(measured, bench, iterations, progress)
    profile = _profile(measured, controller, bench, iterations)
    decided = deciding(job.model_copy(update={"device": measured.device}).model_dump(mode="json"))
    return profile.model_copy(update={"operators": [*profile.operators, *smaller], "job": decided})


_MEASURED_BY = {"mini-batch": _profile_mini_batches, "whole": _profile_bins}
"""The function that measures jobs of each execution mode that can be planned for."""


def _measure_smaller(job: Job, bench: ClusterDocument, iterations: int, progress: Progress) -> list[OperatorCost]:
    """The costs of operators with smaller batches, for profiles that can be scaled: they show the fixed part."""
    size = job.batch_size // _SMALLER
    if not SAMPLERS[job.sampler].scales or size < bench.workers:
        return []
    fewer = max(1, iterations // 2)
    small = job.model_copy(update={"batch_size": size, "run": f"{job.run}-smaller"})
    folder = RunFolder.create(small, "profile", force=False)
    try:
        found = _profile(small, _carried_out(small, bench, folder, fewer, progress), bench, fewer)
    finally:
        folder.close()
    # The mean is enough here.
    return [each.model_copy(update={"seconds": CostSpread(mean=each.seconds.mean)}) for each in found.operators]


def _device(job: Job, cluster: ClusterDocument, progress: Progress) -> str:
    """The kind of device that steps are measured on: that of the run if this host has it, else CPUs."""
    check_device(job.device)
    wanted = chosen_for_plan(job.device, cluster)[0] if job.device == "auto" else job.device
    if wanted == "cpu" or not torch.cuda.is_available():
        return "cpu"
    gpus = torch.cuda.device_count()
    if cluster.workers > gpus:
        progress.note(
            f"{counted(cluster.workers, 'workers')} are measured on {counted(gpus, 'GPUs')}: they slow each other down."
            f" Measure with --cluster 1x{gpus}, and plan for more: the profile is scaled."
        )
    return "cuda"


def _bench(cluster: ClusterDocument, partition: str, beside: bool) -> ClusterDocument:
    """The same parts and workers on this host: parts on machines without workers, workers on machines without parts.

    With `beside`, workers are with their parts, as in the cluster.
    """
    parts = open_partition(partition).parts
    if parts != len(cluster.machines):
        raise PenstockError(
            f"{partition} has {parts} parts and the cluster {len(cluster.machines)} machines: a plan needs one part"
            " for each machine; cut the graph into as many parts.",
            code="mismatched-inputs",
        )
    holders = [
        Machine(name=f"holder-{number}", workers=machine.workers if beside else 0)
        for number, machine in enumerate(cluster.machines)
    ]
    counts = [min(_MOST, cluster.workers - first) for first in range(0, cluster.workers, _MOST)]
    gpus = torch.cuda.device_count()
    seats = [Machine(name=f"{_SEATS}-{number}", workers=count, gpus=gpus) for number, count in enumerate(counts)]
    if beside:
        seats = []
    return cluster.model_copy(
        update={
            "machines": [*holders, *seats],
            "launcher": "local",
            "share_gpus": True,
            "samplers": 0,
            "partition": partition,
            "replicas": [],
        }
    )


def _carried_out(
    job: Job, bench: ClusterDocument, folder: RunFolder, iterations: int, progress: Progress
) -> Controller:
    launcher = make_launcher(bench, folder.path)
    try:
        with polite_interrupt() as asked:
            shown = _MeasuringProgress(progress, WARMING + iterations + 1)
            controller = Controller(template_of(job, bench, folder, measured=iterations), launcher, shown)
            outcome = controller.run(asked, lambda facts: None)
    finally:
        launcher.close()
    if outcome.state != "measured":
        raise PenstockError("The measurement was interrupted: nothing was written.", code="closed")
    if controller.recoveries:
        lost = controller.recoveries[0]
        raise PenstockError(
            f"{lost['task']} was lost while it was measured ({lost['cause']}): measure again.", code="peer-lost"
        )
    return controller


class _MeasuringProgress(Progress):
    """Shows measured iterations: the run has more epochs than are trained, so it shows none."""

    def __init__(self, shown: Progress, iterations: int) -> None:
        super().__init__()
        self._shown, self._left = shown, iterations
        self.note = shown.note  # type: ignore[method-assign]

    def start(self, what: str, total: int, unit: str) -> None:
        """Training is what is measured."""
        self._shown.start("measuring", self._left, "iterations")

    def advance(self, amount: int) -> None:
        amount = min(amount, self._left)
        self._left -= amount
        if amount:
            self._shown.advance(amount)

    def finish(self) -> None:
        """All of them are measured, or the measurement was broken off."""
        self._shown.finish()


def _profile(job: Job, controller: Controller, bench: ClusterDocument, iterations: int) -> Profile:
    tasks = list(controller.tasks.values())
    of_kind = {kind: [task for task in tasks if task.spec.kind == kind] for kind in ("store", "server", "worker")}
    stores, servers, workers = of_kind["store"], of_kind["server"], of_kind["worker"]
    found = [task.observed for task in workers]
    # A worker that draws its batches itself does the work of a sampler.
    memory = {"store": _memory(stores), "sampler": _memory(workers), "worker": _memory(workers)}
    if servers:
        memory["server"] = _memory(servers)
    on_device = max(each["device_gb"] for each in found)
    held = [MemoryUse(process=process, gb=gb) for process, gb in memory.items()]
    held += [MemoryUse(process="worker", device=job.device, gb=on_device)] if on_device else []
    rates = [rate for each in found for rate in each["rates"]]
    names = [task.spec.id for task in stores]
    return Profile(
        job=deciding(job.model_dump(mode="json")),
        iterations=iterations,
        batches=found[0]["batches"],
        parts=len(stores),
        workers=len(workers),
        operators=_operators(job, found, stores, servers, iterations),
        transfers=_transfers(found, names, float(np.quantile(rates, 0.9)) if rates else 0.0),
        memory=held,
        cluster=dict(conditions(bench)),
    )


def _operators(
    job: Job, found: list[dict[str, Any]], stores: list[TaskRecord], servers: list[TaskRecord], iterations: int
) -> list[OperatorCost]:
    """`serve` is a store's work for one worker's batch, `sum` a parameter server's for one iteration."""
    served = found[0]["served"]
    seconds = {
        "sample": (_worker_group(found, "sample"), "cpu", 1),
        "gather": (_worker_group(found, "gather", "transfer"), "cpu", 1),
        "step": (_worker_group(found, "compute"), job.device, 2),
        "serve": (_served(stores, served, len(found) * iterations), "cpu", 1),
    }
    if servers:
        seconds["sum"] = (_served(servers, served, iterations), "cpu", 1)
    at = {"batch_size": float(job.batch_size)}
    return [
        OperatorCost(name=name, device=device, sizes=at, iterations=iterations, seconds=spread, cores=cores)
        for name, (spread, device, cores) in seconds.items()
    ]


def _transfers(found: list[dict[str, Any]], stores: list[str], rate: float) -> list[TransferCost]:
    """What workers read from stores, the size of a batch's blocks if drawn elsewhere, and all gradients."""
    varying = CostSpread.of(np.concatenate([_relative(each) for each in found])).shape
    blocks = [float(np.mean(each["blocks"])) for each in found]
    read = {name: _matrix(found, name, stores) for name in ("lists", "features", "embeddings")}
    transfers = [
        TransferCost(name="lists", source="part", target="worker", bytes=read["lists"], shape=varying),
        TransferCost(name="features", source="part", target="worker", bytes=read["features"], shape=varying, rate=rate),
        TransferCost(name="blocks", source="sampler", target="worker", bytes=[blocks], shape=varying),
        TransferCost(name="gradients", source="model", target="model", bytes=[[float(found[0]["weights"])]]),
    ]
    if any(map(any, read["embeddings"])):
        # As many bytes of gradients are sent back.
        rows = read["embeddings"]
        transfers.append(TransferCost(name="embeddings", source="part", target="worker", bytes=rows))
    return transfers


def _worker_group(found: Iterable[dict[str, Any]], *stages: str) -> CostSpread:
    """Seconds per iteration of some stages, of all workers."""
    return CostSpread.of(np.concatenate([np.sum([each["seconds"][stage] for stage in stages], 0) for each in found]))


def _served(tasks: list[TaskRecord], seconds: dict[str, float], iterations: int) -> CostSpread:
    """Seconds per task and iteration; a server or store does not know which iteration it works for."""
    return CostSpread(mean=max(0.0, sum(seconds[task.spec.id] for task in tasks)) / len(tasks) / iterations)


def _memory(tasks: list[TaskRecord]) -> float:
    return max(task.peak_mb for task in tasks) / 1024


def _matrix(found: list[dict[str, Any]], flow: str, names: list[str]) -> list[list[float]]:
    """Mean bytes per iteration, from every store to every worker."""
    return [[float(np.mean(each["bytes"].get(flow, {}).get(name, [0]))) for each in found] for name in names]


def _relative(found: dict[str, Any]) -> Array:
    """A worker's bytes of each iteration, as multiples of its mean."""
    total: Array = np.asarray(found["blocks"], np.float64)
    for by_peer in found["bytes"].values():
        for sizes in by_peer.values():
            total = total + np.asarray(sizes)
    return np.asarray(total / max(float(total.mean()), 1.0))
