"""How a model is spread over GPUs, and which GPUs are simulated for all that do the same.

GPUs are numbered as Megatron does: tensor ranks first, then data ranks, then stages; the expert groups are neighbouring
data ranks. The GPUs of one tensor group always send and compute alike and stand for one *device*.

Data ranks do the same work on other tokens. Where not all are asked for, the first `replicas` stand for all: as many as
fill whole expert groups and whole servers. A ring over all data ranks then goes on beyond the last of them to the
fabric, from where the same comes in to the first. Where the data ranks are no multiple of that number, servers hold
different stages and expert groups lie differently in them: then none can stand for others, and all are simulated.

A stage works in the order of one forward, one backward pass (1F1B), plain or interleaved (`order_of`).
"""

from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.simulate.llm.model import Model


@dataclass(frozen=True)
class Parallelism:
    """Degrees, and how a step is cut."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1  # of the data ranks
    microbatches: int = 1  # of every data rank in a step
    microbatch_size: int = 1  # sequences
    interleave: int = 1  # chunks of layers a stage has
    sequence_parallel: bool = True  # what passes between stages is cut over the tensor ranks

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "expert", "microbatches", "microbatch_size", "interleave"):
            if getattr(self, name) < 1:
                raise PenstockError(
                    f"The degree {name} is {getattr(self, name)}: give at least 1.", code="value-out-of-range"
                )
        if self.data % self.expert:
            raise PenstockError(
                f"data={self.data} is not divisible by expert={self.expert}.",
                code="unsupported-combination",
            )
        if self.interleave > 1 and (self.microbatches % self.pipeline or self.pipeline == 1):
            raise PenstockError(
                f"Interleaving needs pipeline above 1 and microbatches={self.microbatches} divisible by"
                f" pipeline={self.pipeline}.",
                code="unsupported-combination",
            )

    @property
    def gpus(self) -> int:
        """The number of GPUs that the job uses."""
        return self.tensor * self.pipeline * self.data

    @property
    def chunks(self) -> int:
        """Pieces of the model, in the order in which a microbatch passes them: chunk c is on stage c % pipeline."""
        return self.pipeline * self.interleave

    def layers_of(self, chunk: int, model: Model) -> range:
        """The layers of a chunk."""
        each = model.layers // self.chunks
        return range(chunk * each, (chunk + 1) * each)

    def check(self, model: Model, server_gpus: int) -> None:
        """Refuse what does not go into each other."""
        if model.layers % self.chunks:
            raise PenstockError(
                f"layers={model.layers} is not divisible by pipeline x interleave = {self.chunks}.",
                code="unsupported-combination",
            )
        if self.tensor > server_gpus or server_gpus % self.tensor:
            raise PenstockError(
                f"The servers' {server_gpus} GPUs are not divisible by tensor={self.tensor}.",
                code="unsupported-combination",
            )
        if self.expert > 1 and (not model.experts or model.experts % self.expert):
            raise PenstockError(
                f"experts={model.experts} is not divisible by expert={self.expert}; for a dense model set expert to 1.",
                code="unsupported-combination",
            )

    def replicas(self, server_gpus: int, everything: bool) -> int:
        """Data ranks that are simulated."""
        alike = self.alike(server_gpus)
        return self.data if everything or self.data % alike else alike

    def alike(self, server_gpus: int) -> int:
        """Data ranks that fill whole expert groups and whole servers."""
        return lcm(self.expert, server_gpus // self.tensor)


class Work(NamedTuple):
    """One pass of one microbatch through one of a stage's chunks."""

    forward: bool
    chunk: int  # among the stage's own
    microbatch: int


def order_of(stage: int, stages: int, microbatches: int, interleave: int = 1) -> list[Work]:
    """What a stage does in a step: forward passes until the first comes back, then one of each, then the rest."""
    total = microbatches * interleave
    if interleave == 1:
        warm = min(stages - stage - 1, total)
    elif microbatches == stages:
        # The first microbatch comes back after all have passed everywhere.
        warm = total
    else:
        warm = min(2 * (stages - stage - 1) + (interleave - 1) * stages, total)
    forward = [_pass(k, True, stages, interleave) for k in range(total)]
    backward = [_pass(k, False, stages, interleave) for k in range(total)]
    steady = [each for k in range(total - warm) for each in (forward[warm + k], backward[k])]
    return forward[:warm] + steady + backward[total - warm :]


def _pass(k: int, forward: bool, stages: int, interleave: int) -> Work:
    """A stage's k-th pass one way: rounds of as many microbatches as there are stages, chunk after chunk."""
    chunk = k // stages % interleave
    microbatch = k // (stages * interleave) * stages + k % stages if interleave > 1 else k
    return Work(forward, chunk if forward else interleave - 1 - chunk, microbatch)
