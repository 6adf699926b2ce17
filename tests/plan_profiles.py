"""Profiles that nobody measured, and runs planned from them."""

from collections.abc import Sequence
from typing import Any

from penstock.cost.profile import Profile
from penstock.hardware.machines import Machines
from penstock.plan.comparison import Comparison
from penstock.plan.workloads.mini_batch import MINI_BATCH, MiniBatchExecution

BATCH = 64.0


def profile_of(
    parts: int,
    workers: int,
    seconds: dict[str, float] | None = None,
    smaller: dict[str, float] | None = None,
    features: tuple[float, float] = (8e5, 1e5),
    lists: list[list[float]] | None = None,
    blocks: list[float] | None = None,
    embeddings: list[list[float]] | None = None,
    gradients: float = 1e5,
    sizes: Sequence[float] = (1.0,),
    on_cuda: float | None = None,
    **changes: Any,
) -> Profile:
    """A worker reads most from its own part; every amount is constant unless changed.

    `seconds` are those of operators, `smaller` the same with batches of an eighth, `on_cuda` those of a step on a GPU.
    """
    times = {"serve": 0.0, "sample": 0.002, "gather": 0.001, "step": 0.01, "sum": 0.001, **(seconds or {})}
    measured = [(name, "cpu", BATCH, each) for name, each in times.items()]
    measured += [(name, "cpu", BATCH / 8, each) for name, each in (smaller or {}).items()]
    measured += [] if on_cuda is None else [("step", "cuda", BATCH, on_cuda)]
    near, far = features
    rows = [[near if part == worker * parts // workers else far for worker in range(workers)] for part in range(parts)]
    read = {"lists": lists or [[size / 100 for size in row] for row in rows], "features": rows}
    read |= {} if embeddings is None else {"embeddings": embeddings}
    shapes = {"lists": list(sizes), "features": list(sizes)}
    fields = {
        "job": {"graph": "g"},
        "iterations": 10,
        "batches": 20,
        "parts": parts,
        "workers": workers,
        "operators": [
            {"name": name, "device": device, "sizes": {"batch_size": size}, "seconds": {"mean": each}}
            for name, device, size, each in measured
        ],
        "transfers": [
            *(
                {"name": name, "source": "part", "target": "worker", "bytes": each, "shape": shapes.get(name, [1.0])}
                for name, each in read.items()
            ),
            {
                "name": "blocks",
                "source": "sampler",
                "target": "worker",
                "bytes": [blocks or [1e4] * workers],
                "shape": list(sizes),
            },
            {"name": "gradients", "source": "model", "target": "model", "bytes": [[gradients]]},
        ],
        "memory": [{"process": kind, "gb": 1} for kind in ("store", "sampler", "worker", "server")],
    }
    return Profile.model_validate({**fields, **changes})


def mini_batch(stores: list[str], samplers: int = 0, **fields: Any) -> MiniBatchExecution:
    """How a run with these stores is set up."""
    return MiniBatchExecution(stores=stores, samplers=samplers, **fields)


def comparison(profile: Profile, execution: MiniBatchExecution, machines: Machines, seed: int = 0) -> Comparison:
    """A mini-batch run on some machines."""
    return Comparison(MINI_BATCH.build(profile, execution), machines, seed)


def machines_of_rates(*rates: float, cores: float = 8, gpus: float = 0) -> Machines:
    """Machines that differ by their links (bytes/s)."""
    count = len(rates)
    return Machines(
        tuple(f"m{number}" for number in range(count)),
        {"cores": (cores,) * count, "memory_gb": (float("inf"),) * count, "gpus": (gpus,) * count},
        rates,
        ("",) * count,
        (1.0,) * count,
    )
