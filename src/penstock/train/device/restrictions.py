"""What a job allows a device to do by itself, and the reasons where it does not."""

from penstock.graph.graph import Graph
from penstock.pipeline.schedule import Schedule
from penstock.sampling import NeighbourSampler
from penstock.sampling.device.room import Room, largest_room, room_for
from penstock.sampling.kernels import SCANNED
from penstock.sampling.registry import sampler_entry
from penstock.train.job import Job
from penstock.train.tasks import Task

_PRESAMPLED = 16
"""Batches from which the room of all others is concluded."""
_MOVING = ("OneCycleLR", "CyclicLR")
_FUSED = ("Adam", "AdamW", "SGD")
"""Optimisers that can be told on the device to leave a step out."""


def against_sampling(job: Job, graph: Graph, task: Task) -> list[str]:
    """Why batches of a job are drawn on the host; empty where a device can."""
    reasons = []
    if not graph.is_homogeneous:
        reasons.append("the graph has several types")
    if "device" not in sampler_entry(job.sampler).supports:
        reasons.append(f"sampler {job.sampler} is the host's")
    if job.weight is not None or job.time is not None:
        reasons.append("draws by weight or time are the host's")
    if task.name not in ("node-classification", "node-regression"):
        reasons.append(f"{task.name} draws its batches on the host")
    if any(not isinstance(fanout, int) or not 0 < fanout <= SCANNED for fanout in job.fanouts):
        reasons.append(f"fan-outs beyond {SCANNED} are the host's")
    if graph.num_nodes >= 1 << 31:
        reasons.append("the graph has 2^31 vertices or more")
    return reasons


def against_capture(job: Job, graph: Graph, task: Task, zoo_model: bool, learnable: bool) -> list[str]:
    """Why steps are not captured; empty where they can be."""
    reasons = against_sampling(job, graph, task)
    if not job.capture:
        reasons.append("capture is off")
    if job.sample_on in ("host", "hybrid"):
        reasons.append(f"sample_on is {job.sample_on}")
    if not zoo_model:
        reasons.append("the model is not one of the zoo's")
    if learnable:
        reasons.append("vertex embeddings are learned on the host")
    if job.norm == "batch":
        reasons.append("batch normalisation would see the room that a batch leaves empty")
    if job.optimiser not in _FUSED or not job.optimiser_options.get("fused", True):
        reasons.append(f"optimiser {job.optimiser} as it is set cannot leave out a step on the device")
    if job.optimiser_options.get("dampening"):
        reasons.append("a dampened momentum's first step is unlike the others")
    if job.schedule in _MOVING and job.schedule_options.get("cycle_momentum", True):
        reasons.append(f"schedule {job.schedule} changes the momentum, which a captured step has in it")
    return reasons


def presampled_room(job: Job, graph: Graph, schedule: Schedule) -> Room:
    """The room for a job's batches, from its first ones; the same whenever and wherever the run goes on."""
    fanouts = [fanout for fanout in job.fanouts if isinstance(fanout, int)]
    sampler = NeighbourSampler(graph, fanouts, job.replace)
    sizes: list[list[int]] = []
    for planned, _ in zip(schedule.from_position(), range(_PRESAMPLED), strict=False):
        if len(planned.seeds) == schedule.batch_size or not sizes:
            batch = sampler.sample(planned.seeds, planned.key)
            sizes.append([size for block in batch.blocks[::-1] for size in (block.num_edges, block.num_src)])
    return room_for(sizes, schedule.batch_size, largest_room(schedule.batch_size, fanouts, graph.num_nodes))
