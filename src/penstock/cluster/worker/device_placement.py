"""A worker's session on its GPU: the model is there, and everything else is drawn and gathered by the host."""

from contextlib import suppress

import torch

from penstock.errors import PenstockError
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.train.device.decision import Decision, row_type
from penstock.train.device.memory import loaded_working
from penstock.train.device.placed import Placed
from penstock.train.device.placement import place
from penstock.train.device.trial import NOTHING, Load, StepMemory, tried_steps
from penstock.train.job import Job
from penstock.train.session import Session

_WHY = [
    "Batches are drawn and features gathered on the host, which asks their owners.",
    "Steps are launched one by one: between two the workers sum their gradients.",
]


def check_for_gpus(job: Job, served: bool, learnable: bool) -> None:
    """Refuse what only a GPU that has the graph to itself can do; `learnable`: embeddings are at their owners."""
    wish = job.placed
    if job.sample_on in ("device", "hybrid"):
        raise PenstockError(
            f"sample_on {job.sample_on} needs the whole graph: on several machines use auto or host.",
            code="unsupported-combination",
        )
    if not {wish.topology, wish.features} <= {"auto", "host"} or wish.cache_rows or job.feature_type != "stored":
        raise PenstockError(
            "On several machines the graph stays with its stores, and nothing of it on GPUs: leave out placement and"
            " feature_type.",
            code="unsupported-combination",
        )
    if job.compute_type == "float16" and (served or learnable):
        raise PenstockError(
            "compute_type float16 leaves out steps that overflow, which parameter servers and the owners of embeddings"
            " do not hear of: use bfloat16.",
            code="unsupported-combination",
        )


def place_with_host(session: Session, share: float, fresh: bool) -> Placed:
    """Let batches find the GPU; what a step needs there is tried on a part of a batch.

    `share` is how much the worker gets of the batches that its task samples: one that takes its share when it samples
    has done so in the trial too. Once a run has begun (it is not `fresh`), learnable rows are past the step that a
    trial would read.
    """
    step = NOTHING
    if fresh:
        step = tried_steps(session, row_type(session.job))
    elif not session.inputs.tables:
        # Whoever comes back does not wait for a store that is lost too: it only predicts less.
        with suppress(PenstockError):
            step = tried_steps(session, row_type(session.job))
    placed = place(session, training=False)
    placed.decision = _decided(session, _part(step, share))
    placed.why = [*_WHY]
    return placed


def _part(step: StepMemory, share: float) -> StepMemory:
    return step._replace(whole=Load(*(round(share * amount) for amount in step.whole)))


def _decided(session: Session, step: StepMemory) -> Decision:
    """Nothing of the graph is on the GPU; training must fit it."""
    job, device = session.job, session.inputs.device
    parameters = sum(parameter.numel() for parameter in session.learned.parameters())
    working = loaded_working(step, None, 0, job.transfer_depth + 1, parameters, row_type(job))
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    sizes = Sizes(0, 0, 1, 0, working.bytes, free, total, 0)
    residence: Residence = decide_residence(sizes, Wanted("host", "host", 0, job.device_share))
    return Decision(residence, working, None, False, False, _WHY)
