"""In what order a stage works: one forward, one backward (1F1B), plain or interleaved."""

from typing import NamedTuple


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
