"""Whether the workers of a run compute on GPUs, and which GPU each worker uses."""

import os

import torch

from penstock.cluster.layout import Layout, Setup
from penstock.errors import PenstockError
from penstock.hardware.cluster import LAUNCHER_FACTS, ClusterDocument, Machine
from penstock.hardware.machines import check_device

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def chosen_for_all(device: str, cluster: ClusterDocument, layout: Layout | None = None) -> tuple[str, str | None]:
    """`cpu` or `cuda`, for every worker, from a job's `device`; and a note for the user on the choice, or None.

    `auto` is cuda where every worker has a GPU of its own: workers of different kinds would wait for the slowest.
    Workers are where `layout` says, or as many on each machine as the cluster file does.
    """
    check_device(device)
    if device == "cpu":
        return "cpu", None
    short = [(machine, workers) for machine, workers in _seated(cluster, layout) if workers > machine.gpus]
    if device == "auto" and short:
        some = any(machine.gpus for machine, workers in _seated(cluster, layout) if workers)
        return "cpu", f"The workers compute on CPUs, as {_shortage(*short[0])}." if some else None
    for machine, workers in short:
        _check_shared(machine, workers, cluster.share_gpus)
    return "cuda", None


def own_gpus(cluster: ClusterDocument, layout: Layout) -> bool:
    """Whether no two workers of a run on GPUs share one."""
    return all(workers <= machine.gpus for machine, workers in _seated(cluster, layout))


def claim_gpu(setup: Setup) -> None:
    """Restrict this worker's process to its own GPU. Must be called before CUDA is initialised;
    later it has no effect.
    """
    task, given = setup.task, LAUNCHER_FACTS[setup.cluster.launcher].gives_gpus
    if not given:
        os.environ[_VISIBLE] = _name_of(task.gpu, os.environ.get(_VISIBLE))
    if not torch.cuda.is_available():
        which = "no GPU" if given else f"no GPU {task.gpu}"
        raise PenstockError(
            f"{task.id} finds {which} on machine {task.machine}, or its torch was built without CUDA: correct the"
            " machine's `gpus` in the cluster file, or set device to cpu.",
            code="device-not-found",
        )


def _name_of(gpu: int | None, visible: str | None) -> str:
    """The number of a GPU for CUDA_VISIBLE_DEVICES, among all or among those visible to this
    process; empty for none.
    """
    if gpu is None:
        return ""
    if visible is None:
        return str(gpu)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[gpu] if gpu < len(names) else ""


def _seated(cluster: ClusterDocument, layout: Layout | None) -> list[tuple[Machine, int]]:
    """Every machine with the number of its workers."""
    if layout is None:
        return [(machine, machine.workers) for machine in cluster.machines]
    seats = [task.machine for task in layout.of_kind("worker")]
    return [(machine, seats.count(machine.name)) for machine in cluster.machines]


def _check_shared(machine: Machine, workers: int, may_share: bool) -> None:
    if not machine.gpus:
        raise PenstockError(
            f"Device cuda cannot be used: {_shortage(machine, workers)}. Set its `gpus`, or set device to cpu.",
            code="device-not-found",
        )
    if not may_share:
        raise PenstockError(
            f"Device cuda cannot be used: {_shortage(machine, workers)}. Set share_gpus, or ask for fewer workers.",
            code="infeasible",
        )


def _shortage(machine: Machine, workers: int) -> str:
    has = f"{workers} worker" + ("s" if workers > 1 else "")
    gpus = f"{machine.gpus or 'no'} GPU" + ("s" if machine.gpus > 1 else "")
    return f"machine {machine.name} has {has} and {gpus}"
