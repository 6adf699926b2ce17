"""Small jobs on small clusters, at random or by hand."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from penstock.graph.arrays import Array
from penstock.hardware.machines import star
from penstock.plan.placement import PlacementProblem, placement_problem
from penstock.simulate.gnn import GnnJob, gnn_workload
from penstock.simulate.workload import Workload

NEEDS = {"worker": {"gpus": 1.0, "cores": 1.0}, "sampler": {"cores": 2.0}, "server": {"cores": 1.0}}


def job(stores: int, workers: int, samplers: int, servers: int = 1, **changed: float) -> Workload:
    """A job with 8 MB a sampler and an iteration from all stores, as much to its worker, and small models."""
    amounts = {"pull_bytes": 8e6, "batch_bytes": 8e6, "model_bytes": 1e5, "sampler_seconds": 0.002} | changed
    return gnn_workload(GnnJob(stores, workers, samplers, servers, worker_seconds=0.004, resources=NEEDS, **amounts))


def posed(load: Workload, rates: list[float], cores: list[float], gpus: list[float]) -> PlacementProblem:
    """The problem on machines with NICs of so many MB/s."""
    nics = np.array(rates) * 1e6
    return placement_problem(load, star(nics, nics), {"cores": cores, "gpus": gpus})


@st.composite
def loads_and_clusters(draw: st.DrawFn) -> tuple[Workload, list[float], list[float], list[float]]:
    """A job of up to 4 workers and a cluster that may or may not hold it."""
    machines = draw(st.integers(1, 4))
    load = job(machines, draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.integers(0, 1)))
    row = st.lists(st.integers(0, 9).map(float), min_size=machines, max_size=machines)
    rates = draw(st.lists(st.sampled_from([100.0, 200.0, 500.0]), min_size=machines, max_size=machines))
    return load, rates, draw(row), draw(row)


def all_feasible(problem: PlacementProblem) -> list[Array]:
    """Every placement of units that respects the limits."""
    out = []
    for machines in product(range(problem.machines), repeat=len(problem.movable)):
        units = problem.home.copy()
        units[problem.movable] = machines
        if not problem.over_use(units).any():
            out.append(units)
    return out


ROOMY = ([100.0, 500.0, 200.0, 500.0], [12.0, 12.0, 12.0, 12.0], [2.0, 2.0, 2.0, 2.0])
