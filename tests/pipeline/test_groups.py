"""Groups of batches: how they are divided and forecast, and that batches do not depend on it."""

from itertools import islice, product

import numpy as np
import pytest

from penstock.pipeline.grouped_batches import (
    DrawForecasts,
    DrawingProcessor,
    GroupedBatches,
    MovingMedian,
    divided,
    divided_evenly,
)
from penstock.pipeline.schedule import Schedule


def makespan(shares, times, speeds):
    """When the last processor is done."""
    return max(sum(times[place] for place in share) / speed for share, speed in zip(shares, speeds, strict=True))


def test_the_first_round_is_divided_evenly():
    assert divided_evenly(7, 3) == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.mark.parametrize("seed", range(20))
def test_uniform_machines_are_near_the_best_division(seed):
    rng = np.random.default_rng(seed)
    times, speeds = rng.lognormal(0, 0.5, 7).tolist(), [1.0, 1.0, float(rng.uniform(1, 8))]
    found = divided(times, speeds)
    assert sorted(place for share in found for place in share) == list(range(7))
    best = min(
        makespan([[p for p in range(7) if to[p] == at] for at in range(3)], times, speeds)
        for to in product(range(3), repeat=7)
    )
    assert makespan(found, times, speeds) <= 1.25 * best
    assert makespan(found, times, speeds) <= makespan(divided_evenly(7, 3), times, speeds) + 1e-12


def test_a_median_forgets_and_ignores_outliers():
    moving = MovingMedian(3)
    assert moving.forecast() is None
    for value in (1.0, 1.2, 50.0):
        moving.add(value)
    assert moving.forecast() == 1.2
    moving.add(60.0)
    assert moving.forecast() == 50.0


def test_forecasts_know_batches_by_number_and_processors_by_kind():
    forecasts = DrawForecasts(["cpu", "device"])
    assert forecasts.seconds(0) is None and forecasts.speed("device") == 1.0
    for number, seconds in ((0, 4.0), (1, 8.0), (2, 6.0)):
        forecasts.observe("cpu", number, seconds)
    for _ in range(9):
        forecasts.observe("device", 3, 1.5)
    assert forecasts.speed("device") == 4.0
    assert forecasts.seconds(1) == 8.0, "as long as that batch took"
    assert forecasts.seconds(99) == pytest.approx(6.0, rel=0.4), "as long as others did"


def test_batches_are_those_asked_for_whoever_draws_them():
    schedule, drawn = Schedule(np.arange(50), 8, 3, epochs=3), {"fast": [], "slow": []}

    def drawing(kind):
        def draw(planned):
            drawn[kind].append(planned.position)
            return planned.key, planned.seeds.tolist()

        return DrawingProcessor(kind, draw)

    processors = [drawing("fast"), drawing("slow"), drawing("slow")]
    grouped = GroupedBatches(schedule.from_position(), processors, 10)
    for number, planned in enumerate(schedule.from_position()):
        assert grouped(planned) == (planned.key, planned.seeds.tolist())
        # A group spans epochs: 7 batches make one.
        assert len(drawn["fast"]) + len(drawn["slow"]) == min(21, 10 * (number // 10 + 1))
    facts = grouped.facts()
    assert (facts["size"], facts["drawn"], facts["processors"]) == (10, 3, ["fast", "slow", "slow"])
    assert GroupedBatches(iter(()), processors, 0).size == 24


def test_groups_start_anywhere_and_a_failure_is_the_stages():
    schedule = Schedule(np.arange(20), 4, 1)
    start = list(islice(schedule.from_position(), 7))[6].position

    def fail(planned):
        raise RuntimeError("no such list")

    lane = DrawingProcessor("cpu", lambda planned: planned.position)
    grouped = GroupedBatches(schedule.from_position(start), [lane], 3)
    assert [grouped(planned) for planned in islice(schedule.from_position(start), 4)][:2] == [start, (1, 2)]
    failing = GroupedBatches(schedule.from_position(start), [DrawingProcessor("cpu", fail)], 3)
    with pytest.raises(RuntimeError):
        failing(next(schedule.from_position(start)))
