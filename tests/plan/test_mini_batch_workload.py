"""Our own runs as workloads: who waits for whom, and how long that takes where it can be said."""

import threading
import time

import numpy as np
import pytest

from penstock.pipeline.stages import Stage, StagePipeline
from penstock.plan.comparison import pace
from penstock.plan.workloads.mini_batch import MiniBatchExecution, mini_batch_template
from penstock.simulate.simulation import simulate
from plan_profiles import machines_of_rates, mini_batch, profile_of
from refusals import refused


def stores(count: int) -> list[str]:
    return [f"store-m{number}" for number in range(count)]


def paced(profile, shape: MiniBatchExecution, placement: dict[str, int], *rates: float) -> float:
    return pace(timed(profile, shape, placement, *rates), shape.ahead) / shape.unrolled


def timed(profile, shape: MiniBatchExecution, placement: dict[str, int], *rates: float, iterations: int = 48):
    load = mini_batch_template(profile, shape)
    where = np.array([placement.get(name, 0) for name in load.task_names], np.int32)
    network = machines_of_rates(*rates).network()
    return simulate(load, network, where[load.beside], iterations, "fair")


@pytest.mark.parametrize("slowest", ["sample", "gather", "step"])
def test_on_one_machine_the_slowest_stage_sets_the_pace(slowest: str) -> None:
    profile = profile_of(1, 1, seconds={slowest: 0.05})
    assert paced(profile, mini_batch(stores(1)), {}, 1e9) == pytest.approx(0.05)


def test_samplers_share_the_drawing() -> None:
    """Three of them draw three batches at once; the template holds three iterations."""
    profile = profile_of(1, 1, seconds={"sample": 0.06})
    shape = mini_batch(stores(1), samplers=3, sample_depth=4)
    assert paced(profile, shape, {}, 1e9) == pytest.approx(0.02)


def test_a_slow_link_sets_the_pace() -> None:
    """One worker far from the only part: all it reads crosses one link."""
    profile = profile_of(2, 1, features=(4e5, 0.0), blocks=[0.0])
    where = {"store-m1": 1, "worker-0": 1}
    assert paced(profile, mini_batch(stores(2)), where, 1e6, 1e6) == pytest.approx((4e5 + 4e3) / 1e6, rel=5e-3)
    assert timed(profile, mini_batch(stores(2)), where, 1e6, 1e6).link_use[0] > 0.9


def test_reading_ahead_is_bounded() -> None:
    """However fast the links, a batch is drawn only a few steps before it is computed."""
    profile = profile_of(1, 1, seconds={"step": 1.0, "sample": 0.001})
    shape = mini_batch(stores(1))
    load = mini_batch_template(profile, shape)
    timeline = timed(profile, shape, {}, 1e9)
    draw, step = (load.task_names.index(name) for name in ("draw 0.0", "step 0.0"))
    deepest = shape.drawn_ahead + shape.pulled_ahead
    for n in range(deepest, timeline.iterations):
        assert timeline.starts[n, draw] >= timeline.ends[n - deepest, step]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_ring_moves_what_it_must(workers: int) -> None:
    """2 (n - 1) / n of the gradients leave every worker's machine; all wait for the last step."""
    free = {"sample": 0.0, "gather": 0.0, "step": 0.0}
    profile = profile_of(workers, workers, seconds=free, features=(0.0, 0.0), blocks=[0.0] * workers, gradients=6e5)
    names = {f"worker-{rank}": rank for rank in range(workers)} | {f"store-m{rank}": rank for rank in range(workers)}
    seconds = paced(profile, mini_batch(stores(workers)), names, *[1e6] * workers)
    assert seconds == pytest.approx(2 * (workers - 1) / workers * 0.6)


def test_servers_are_where_all_gradients_go() -> None:
    free = {"sample": 0.0, "gather": 0.0, "step": 0.0, "sum": 0.0}
    profile = profile_of(3, 3, seconds=free, features=(0.0, 0.0), blocks=[0.0] * 3, gradients=3e5)
    names = {f"worker-{rank}": rank for rank in range(3)} | {f"store-m{rank}": rank for rank in range(3)}
    # Two workers' gradients into the server's machine, then the weights out of it.
    assert paced(profile, mini_batch(stores(3), servers=1), names, 1e6, 1e6, 1e6) == pytest.approx(2 * 2 * 0.3)


def test_learned_rows_go_there_and_back_in_every_step() -> None:
    free = {"sample": 0.0, "gather": 0.0, "step": 0.0}
    rows = [[3e5, 3e5], [0.0, 0.0]]
    profile = profile_of(2, 2, seconds=free, features=(0.0, 0.0), blocks=[0.0] * 2, gradients=0.0, embeddings=rows)
    names = {"store-m1": 1, "worker-0": 0, "worker-1": 1}
    # One worker is beside the rows; the other's gradients come over the link, then the rows go back over it.
    assert paced(profile, mini_batch(stores(2)), names, 1e6, 1e6) == pytest.approx(2 * 0.3)


@pytest.mark.parametrize(("samplers", "threads"), [(0, 1), (0, 2), (2, 2)])
def test_works_ahead_as_far_as_the_pipeline_does(samplers: int, threads: int) -> None:
    """The last batch that is sampled, and the last that is gathered, while the first is computed."""
    shape = mini_batch(stores(1), samplers, sample_depth=3, sample_threads=threads)
    counts = {"sample": -1, "gather": -1}
    lock = threading.Lock()

    def note(stage: str):
        def work(item: int) -> int:
            with lock:
                counts[stage] = max(counts[stage], item)
            return item

        return work

    stages = [
        Stage("sample", note("sample"), threads, shape.sample_depth),
        Stage("gather", note("gather"), shape.gather_threads, shape.gather_depth),
        Stage("transfer", lambda item: item, 1, shape.transfer_depth),
    ]
    with StagePipeline(iter(range(100)), stages, source_depth=4) as flow:
        assert next(iter(flow)) == 0
        most = {"sample": shape.drawn_ahead + shape.pulled_ahead - 2, "gather": shape.pulled_ahead - 1}
        end = time.monotonic() + 20
        while counts != most and time.monotonic() < end:
            time.sleep(0.002)
        # Every queue is full now: nothing more can begin, however long one waits.
        time.sleep(0.05)
        assert counts == most


def test_a_profile_of_other_parts_is_refused() -> None:
    with refused("mismatched-inputs 2 3"):
        mini_batch_template(profile_of(2, 2), mini_batch(stores(3)))
