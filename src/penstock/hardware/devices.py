"""Which kind of device the workers of a cluster compute on, as far as its machines decide it."""

from penstock.errors import PenstockError
from penstock.hardware.cluster import ClusterDocument


def check_device(device: str) -> None:
    """Refuse what cannot be asked of several machines at once."""
    if device not in ("auto", "cpu", "cuda"):
        raise PenstockError(
            f"Device {device!r} cannot be used on several machines: use auto, cpu or cuda, and set each machine's"
            " `gpus`.",
            code="unsupported-combination",
        )


def chosen_for_plan(device: str, cluster: ClusterDocument) -> tuple[str, float]:
    """`cpu` or `cuda` for all workers of a plan, and the GPUs that each of them needs.

    Where workers go is the plan's to decide: what counts is how many GPUs all machines have together.
    """
    check_device(device)
    gpus, workers = sum(machine.gpus for machine in cluster.machines), cluster.workers
    if device == "cpu" or (device == "auto" and gpus < workers):
        return "cpu", 0.0
    if not gpus:
        raise PenstockError(
            "Device cuda cannot be planned for: no machine of the cluster has a GPU. Set each machine's `gpus`, or set"
            " device to cpu.",
            code="device-not-found",
        )
    if gpus < workers and not cluster.share_gpus:
        raise PenstockError(
            f"Device cuda cannot be planned for: the cluster has {workers} workers and {gpus} GPUs. Ask for fewer"
            " workers, or set `share_gpus: true`.",
            code="infeasible",
        )
    return "cuda", 1 / max(1, -(-workers // gpus))
