"""Profiles of sizes that nobody measured."""

import numpy as np
import pytest

from penstock.cost.scaled_profile import TaskWork, count_work, scaled_profile
from penstock.pipeline.schedule import Planned
from penstock.sampling import BatchKey, NeighbourSampler
from plan_profiles import profile_of
from training_graphs import community_graph


def work(parts: int, workers: int, vertices: float, entries: float) -> TaskWork:
    shape = (parts, workers)
    return TaskWork(np.full(shape, vertices / parts), np.full(shape, entries / parts))


def test_bytes_and_seconds_follow_the_work() -> None:
    profile = profile_of(1, 1, features=(8e5, 8e5), seconds={"serve": 0.004})
    scaled = scaled_profile(profile, work(1, 1, 1000, 4000), work(4, 4, 400, 1000))
    assert (scaled.parts, scaled.workers) == (4, 4)
    assert scaled.scaled_from is not None and scaled.scaled_from.parts == 1
    np.testing.assert_allclose(np.array(scaled.transfer("features").bytes).sum(axis=0), 8e5 * 0.4)
    np.testing.assert_allclose(np.array(scaled.transfer("lists").bytes).sum(axis=0), 8e3 * 0.25)
    np.testing.assert_allclose(scaled.transfer("blocks").bytes, [[1e4 * 0.25] * 4])
    seconds = {cost.name: cost.seconds.mean for cost in scaled.operators}
    assert seconds["sample"] == pytest.approx(0.002 * 0.25)
    assert seconds["gather"] == pytest.approx(0.001 * 0.4)
    assert seconds["step"] == pytest.approx(0.01 * 0.28)
    assert seconds["serve"] == pytest.approx(0.004 * 0.28 / 4)
    assert seconds["sum"] == pytest.approx(0.001 * 4)
    assert scaled.transfer("gradients") == profile.transfer("gradients") and scaled.batches == profile.batches
    type(scaled).model_validate(scaled.model_dump())


def test_what_does_not_grow_with_a_batch_is_kept() -> None:
    """Two measurements make a line: 4 ms and 6 ms for the whole batch."""
    profile = profile_of(1, 1, smaller={"sample": 0.002, "gather": 0.001, "step": 0.0055, "serve": 0.0})
    assert profile.smaller_batch == 8
    scaled = scaled_profile(profile, work(1, 1, 400, 400), work(2, 2, 200, 200), work(1, 1, 100, 100))
    assert scaled.operator("step").seconds.mean == pytest.approx(0.004 + 0.006 / 2)
    assert scaled.operator("sample").seconds.mean == pytest.approx(0.002)
    assert scaled.operator("gather").seconds.mean == pytest.approx(0.001)


def test_what_was_measured_on_a_gpu_is_scaled_as_well() -> None:
    scaled = scaled_profile(profile_of(1, 1, on_cuda=0.002), work(1, 1, 1000, 4000), work(2, 2, 500, 2000))
    assert scaled.operator("step", "cuda").seconds.mean == pytest.approx(0.001)
    assert scaled.operator("step").seconds.mean == pytest.approx(0.005)


def test_a_part_takes_less_memory_than_the_whole() -> None:
    profile = profile_of(1, 1)
    less = scaled_profile(profile, work(1, 1, 1, 1), work(2, 2, 1, 1), graph_bytes=1 << 29)
    assert less.memory_gb("store") == pytest.approx(0.75)


def test_work_is_counted_where_it_is() -> None:
    """All that the shares of a batch read, by the part that owns it, and no seed left out."""
    graph = community_graph()
    sampler = NeighbourSampler(graph, [4, 3])
    part_of = np.arange(graph.num_nodes) % 3
    seeds = np.asarray(graph.nodes["node"].splits["train"])[:40]
    planned = Planned(BatchKey(0, 0, 0), seeds, False)
    given: list = []

    def draw(some, planned):
        given.append(sampler.sample(some, planned.key))
        return given[-1]

    found = count_work(draw, [planned], part_of, 3, 4)
    assert sorted(np.concatenate([batch.seeds["node"] for batch in given])) == sorted(seeds)
    assert max(len(batch.seeds["node"]) for batch in given) == 10
    for rank, batch in enumerate(given):
        np.testing.assert_array_equal(
            found.vertices[:, rank], np.bincount(part_of[batch.vertices["node"]], minlength=3)
        )
        drawn = sum(block.num_edges + block.num_dst for block in batch.blocks)
        assert found.entries[:, rank].sum() == drawn
