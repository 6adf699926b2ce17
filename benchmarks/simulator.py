"""How fast the simulator is: the papers100M setting under every rate policy, short and long.

16 machines with a store each, 20 workers with 4 samplers, 1 parameter server: about 1,400 flows an iteration. An event
is the end of a task or flow that took time. Seconds are of one core, so that neighbours on the machine do not count.
"""

from time import process_time
from typing import Annotated, Any

import numpy as np
import typer

from penstock.graph.arrays import Array
from penstock.simulate import POLICIES, GnnJob, Network, PeakToMean, draw_amounts, gnn_workload, lower_bound, star
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import Workload
from products_graph import show

MACHINES, WORKERS, SAMPLERS = 16, 20, 4


def main(
    iterations: Annotated[list[int] | None, typer.Option(help="Iterations to simulate; may be given again.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="A rate policy; may be given again.")] = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Time one simulation per policy and length, after one that is not counted."""
    load, network, placement = papers_setting(seed)
    rows = []
    for name in policy or list(POLICIES):
        for length in iterations or [20, 75, 750]:
            rows.append(_row(load, network, placement, name, length, seed))  # noqa: PERF401
    show("simulator", rows, json)


def papers_setting(seed: int) -> tuple[Workload, Network, Array]:
    """The workload, NICs of 10, 20 or 50 Gb/s, and workers beside their samplers."""
    rng = np.random.default_rng(seed)
    load = gnn_workload(
        GnnJob(
            stores=MACHINES,
            workers=WORKERS,
            samplers_per_worker=SAMPLERS,
            store_seconds=0.02,
            sampler_seconds=0.03,
            worker_seconds=0.05,
            server_seconds=0.005,
            pull_bytes=40e6,
            batch_bytes=30e6,
            model_bytes=2e6,
        )
    )
    rates = rng.choice([10, 20, 50], MACHINES) * 1e9 / 8
    placement = np.zeros(load.tasks, np.int32)
    home = np.arange(WORKERS) % MACHINES
    placement[load.tasks_of("store")] = np.arange(MACHINES)
    placement[load.tasks_of("worker")] = home
    placement[load.tasks_of("sampler")] = np.repeat(home, SAMPLERS)
    return load, star(rates, rates), placement


def _row(load: Workload, network: Network, placement: Array, policy: str, length: int, seed: int) -> dict[str, Any]:
    amounts = draw_amounts(load, length, seed, {"pull": PeakToMean(1.5), "batch": PeakToMean(1.5)})
    simulator = Simulator(load, network, amounts, policy)
    events = simulator.timeline(placement).events
    began = process_time()
    makespan = simulator.makespan(placement)
    seconds = process_time() - began
    return {
        "policy": policy,
        "iterations": length,
        "seconds": seconds,
        "events": events,
        "ns_per_event": 1e9 * seconds / events,
        "makespan_s": makespan,
        "gap_to_bound": makespan / lower_bound(simulator.case(placement)) - 1,
    }


if __name__ == "__main__":
    typer.run(main)
