"""The resources that a task asks of Ray: its share of what the cluster file gives its machine."""

import math
from dataclasses import dataclass

from penstock.cluster.layout import Layout, TaskSpec
from penstock.hardware.cluster import Machine

_COMPUTING = ("worker", "sampler")
_FINEST = 10_000
"""Ray counts in ten-thousandths."""


@dataclass(frozen=True)
class Share:
    """The resources of a machine that one task asks of Ray. Memory is in bytes."""

    cores: float = 0.0
    gpus: float = 0.0
    memory: int = 0


def share_of(task: TaskSpec, layout: Layout, machine: Machine) -> Share:
    """Those that compute divide the cores and the memory among them, and workers the GPUs.

    Stores and servers mostly wait for the network and ask for nothing, unless the machine has nobody else.
    """
    here = [each for each in layout.tasks if each.machine == machine.name]
    sharing = [each for each in here if each.kind in _COMPUTING] or here
    workers = sum(each.kind == "worker" for each in here)
    if task.id not in {each.id for each in sharing}:
        return Share()
    return Share(
        _part(machine.cores or 0, len(sharing)),
        _whole_gpus(machine.gpus, workers) if task.kind == "worker" else 0.0,
        int((machine.memory_gb or 0) * 1e9) // len(sharing),
    )


def _part(amount: float, among: int) -> float:
    """Rounded down, so that all parts together are no more than there is."""
    return math.floor(amount / among * _FINEST) / _FINEST


def _whole_gpus(gpus: int, workers: int) -> float:
    """Ray gives parts of one GPU, but not of several: of workers that share, so many must fit each."""
    if gpus >= workers:
        return float(gpus // workers)
    return _part(1, math.ceil(workers / gpus)) if gpus else 0.0
