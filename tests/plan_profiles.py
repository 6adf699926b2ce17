"""Profiles that nobody measured."""

from typing import Any

from penstock.cost.profile import CostSpread, Profile, TaskCost
from penstock.hardware.machines import Machines


def profile_of(parts: int, workers: int, **changes: Any) -> Profile:
    """A worker reads most from its own part; every amount is constant unless changed."""
    seconds = {"store": 0.0, "sampler": 0.002, "gather": 0.001, "worker": 0.01, "server": 0.001}
    seconds |= changes.pop("seconds", {})
    near, far = changes.pop("features", (8e5, 1e5))
    rows = [[near if part == worker * parts // workers else far for worker in range(workers)] for part in range(parts)]
    fields = {
        "job": {"graph": "g"},
        "iterations": 10,
        "batches": 20,
        "parts": parts,
        "workers": workers,
        "tasks": {
            kind: TaskCost(seconds=CostSpread(mean=each), cores=1, memory_gb=1) for kind, each in seconds.items()
        },
        "lists": [[size / 100 for size in row] for row in rows],
        "features": rows,
        "blocks": [1e4] * workers,
        "gradients": 1e5,
    }
    return Profile.model_validate({**fields, **changes})


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
