"""Our own runs as workloads: who waits for whom, and how long that takes where it can be said."""

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.plan.comparing import pace
from penstock.plan.training import Shape, training_workload
from penstock.simulate.simulation import simulate
from plan_profiles import machines_of_rates, profile_of


def stores(count: int) -> list[str]:
    return [f"store-m{number}" for number in range(count)]


def timed(profile, shape: Shape, placement: dict[str, int], *rates: float, iterations: int = 24):
    load = training_workload(profile, shape)
    where = np.array([placement.get(name, 0) for name in load.task_names], np.int32)
    network = machines_of_rates(*rates).network()
    return simulate(load, network, where[load.beside], iterations, "maxmin")


@pytest.mark.parametrize("slowest", ["sampler", "gather", "worker"])
def test_on_one_machine_the_slowest_stage_sets_the_pace(slowest: str) -> None:
    profile = profile_of(1, 1, seconds={slowest: 0.05})
    timeline = timed(profile, Shape(stores(1)), {}, 1e9)
    assert pace(timeline) == pytest.approx(0.05)


def test_samplers_share_the_drawing() -> None:
    """Three of them draw three batches at once; the template holds three iterations."""
    profile = profile_of(1, 1, seconds={"sampler": 0.06})
    shape = Shape(stores(1), samplers=3, sample_depth=4)
    timeline = timed(profile, shape, {}, 1e9)
    assert pace(timeline) / shape.unrolled == pytest.approx(0.02)


def test_a_slow_link_sets_the_pace() -> None:
    """One worker far from the only part: all it reads crosses one link."""
    profile = profile_of(2, 1, features=(4e5, 0.0), blocks=[0.0])
    timeline = timed(profile, Shape(stores(2)), {"store-m1": 1, "worker-0": 1}, 1e6, 1e6)
    assert pace(timeline) == pytest.approx((4e5 + 4e3) / 1e6, rel=5e-3)
    assert timeline.link_use[0] > 0.9


def test_reading_ahead_is_bounded() -> None:
    """However fast the links, a batch is drawn only a few steps before it is computed."""
    profile = profile_of(1, 1, seconds={"worker": 1.0, "sampler": 0.001})
    shape = Shape(stores(1))
    load = training_workload(profile, shape)
    timeline = timed(profile, shape, {}, 1e9)
    draw, step = (load.task_names.index(name) for name in ("draw 0.0", "step 0.0"))
    deepest = shape.sample_depth + shape.gather_depth + shape.transfer_depth + 2
    for n in range(deepest, timeline.iterations):
        assert timeline.starts[n, draw] >= timeline.ends[n - deepest, step]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_ring_moves_what_it_must(workers: int) -> None:
    """2 (n - 1) / n of the gradients leave every worker's machine; all wait for the last step."""
    free = {"sampler": 0.0, "gather": 0.0, "worker": 0.0}
    profile = profile_of(workers, workers, seconds=free, features=(0.0, 0.0), blocks=[0.0] * workers, gradients=6e5)
    names = {f"worker-{rank}": rank for rank in range(workers)} | {f"store-m{rank}": rank for rank in range(workers)}
    timeline = timed(profile, Shape(stores(workers)), names, *[1e6] * workers)
    assert pace(timeline) == pytest.approx(2 * (workers - 1) / workers * 0.6)


def test_servers_are_where_all_gradients_go() -> None:
    free = {"sampler": 0.0, "gather": 0.0, "worker": 0.0, "server": 0.0}
    profile = profile_of(3, 3, seconds=free, features=(0.0, 0.0), blocks=[0.0] * 3, gradients=3e5)
    names = {f"worker-{rank}": rank for rank in range(3)} | {f"store-m{rank}": rank for rank in range(3)}
    timeline = timed(profile, Shape(stores(3), servers=1), names, 1e6, 1e6, 1e6)
    # Two workers' gradients into the server's machine, then the weights out of it.
    assert pace(timeline) == pytest.approx(2 * 2 * 0.3)


def test_a_profile_of_other_parts_is_refused() -> None:
    with pytest.raises(PenstockError, match="profile is of 2 parts and the cluster has 3 machines"):
        training_workload(profile_of(2, 2), Shape(stores(3)))
