"""Small random workloads, networks and placements for the simulator's tests."""

import numpy as np

from penstock.simulate import GnnJob, PeakToMean, draw_amounts, gnn_workload, racks, star
from penstock.simulate.workload import WorkloadBuilder


def random_case(seed):
    """A workload, a network, a placement and amounts: GNN jobs and loose graphs, stars and racks."""
    rng = np.random.default_rng(seed)
    load = _gnn(rng) if rng.random() < 0.6 else _loose(rng)
    machines = int(rng.integers(1, 6))
    incoming, outgoing = rng.uniform(1, 10, (2, machines))
    network = star(incoming, outgoing)
    if rng.random() < 0.4:
        network = racks(rng.integers(0, 3, machines).tolist(), incoming, outgoing, float(rng.uniform(1, 4)))
    spreads = {kind: PeakToMean(1.7) for kind in {*load.task_kinds, *load.flow_kinds}}
    amounts = draw_amounts(load, int(rng.integers(1, 5)), seed, spreads)
    return load, network, rng.integers(0, machines, load.tasks), amounts


def many_flows(seed):
    """A workload, a network and a placement: a hundred flows between ten machines."""
    rng = np.random.default_rng(seed)
    building = WorkloadBuilder()
    for k in range(100):
        source = building.task(f"a{k}", "work", float(rng.choice([0.0, 0.5, 1.5])))
        building.flow(source, building.task(f"b{k}", "work", 0.0), 4.0, "data")
    load = building.build()
    return load, star(*rng.uniform(1, 10, (2, 10))), rng.integers(0, 10, load.tasks)


def _gnn(rng):
    workers, samplers, stores = (int(count) for count in rng.integers(1, 4, 3))
    return gnn_workload(
        GnnJob(
            stores=stores,
            workers=workers,
            samplers_per_worker=samplers,
            servers=int(rng.integers(0, 3)),
            store_seconds=float(rng.uniform(0, 1)),
            sampler_seconds=float(rng.uniform(0, 1)),
            worker_seconds=1.0,
            server_seconds=0.1,
            pull_bytes=8.0,
            batch_bytes=4.0,
            model_bytes=2.0,
            near_stores=rng.uniform(0.1, 1, (workers * samplers, stores)),
            prefetch=int(rng.integers(1, 3)) if rng.random() < 0.5 else None,
        )
    )


def _loose(rng):
    """Tasks and flows in a random acyclic graph, some of which run ahead of themselves, some with nothing to do."""
    building = WorkloadBuilder()
    tasks = [
        building.task(f"t{k}", "work", float(rng.choice([0.0, 0.5, 1.5])), follows_itself=bool(rng.random() < 0.6))
        for k in range(int(rng.integers(2, 8)))
    ]
    for k in range(int(rng.integers(1, 12))):
        source, target = sorted(rng.choice(len(tasks), 2, replace=False).tolist())
        backwards = bool(rng.random() < 0.3)
        building.flow(
            tasks[target if backwards else source],
            tasks[source if backwards else target],
            float(rng.choice([0.0, 2.0, 5.0])),
            "data",
            name=f"f{k}",
            coflow=f"c{rng.integers(3)}",
            arrival_lag=1 if backwards else 0,
            follows_itself=bool(rng.random() < 0.6),
            awaited_by_target=bool(rng.random() < 0.9),
        )
    return building.build()
