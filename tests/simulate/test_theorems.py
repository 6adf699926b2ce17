"""What the source proves of `oes`, on thousands of random instances."""

import numpy as np

from penstock.simulate import GnnJob, PeakToMean, draw_amounts, gnn_workload, lower_bound, star
from penstock.simulate.levels import chain_alone, chain_crowded, largest_degree
from penstock.simulate.simulation import Simulator

PLACEMENTS = 250


def test_oes_is_within_its_bounds():
    rng = np.random.default_rng(5)
    worst = 0.0
    for _ in range(8):
        workers, samplers, stores = (int(count) for count in rng.integers(1, 4, 3))
        load = gnn_workload(
            GnnJob(
                stores, workers, samplers, servers=int(rng.integers(0, 3)), store_seconds=0.3, sampler_seconds=0.5,
                worker_seconds=0.7, server_seconds=0.1, pull_bytes=8.0, batch_bytes=4.0, model_bytes=2.0,
            )
        )  # fmt: skip
        machines = int(rng.integers(2, 6))
        network = star(*rng.uniform(1, 10, (2, machines)))
        spreads = {kind: PeakToMean(2.0) for kind in ("pull", "batch", "worker")}
        simulator = Simulator(load, network, draw_amounts(load, 5, int(rng.integers(100)), spreads), "oes")
        for _ in range(PLACEMENTS):
            placement = rng.integers(0, machines, load.tasks)
            case, makespan = simulator.case(placement), simulator.makespan(placement)
            low = lower_bound(case)
            assert chain_alone(case) <= low * (1 + 1e-12)
            assert low * (1 - 1e-9) <= makespan <= largest_degree(case) * chain_alone(case) * (1 + 1e-9)
            assert makespan <= chain_crowded(case) * (1 + 1e-9)
            worst = max(worst, makespan / low)
    # The bounds are not empty: contention is there, and the lower bound is near.
    assert 1.02 < worst < 4
