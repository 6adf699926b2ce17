"""Rates alone of jobs that never ran alone."""

import pytest

from penstock.service import admission as module
from penstock.service.admission import SpeedMeter, Speeds


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def measured(clock, meters: list[SpeedMeter], rates: list[float]) -> None:
    """Ten seconds in which the jobs do so many steps per second."""
    for meter in meters:
        meter.note(meter.steps)
    clock[0] += 10
    for meter, rate in zip(meters, rates, strict=True):
        meter.note(meter.steps + round(10 * rate))


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_neighbours_of_a_job_whose_speed_is_known_have_the_same(clock, speed) -> None:
    speeds, first, second = Speeds(), SpeedMeter(), SpeedMeter()
    measured(clock, [first], [8.0])
    assert speeds.of(first, "first") == 1.0
    first.beside(frozenset({2}))
    second.beside(frozenset({1}))
    speeds.learn([(first, "first"), (second, "second")])
    assert speeds.of(second, "second") is None
    measured(clock, [first, second], [8.0 * speed, 20.0])
    speeds.learn([(first, "first"), (second, "second")])
    assert speeds.of(first, "first") == pytest.approx(speed)
    assert speeds.of(second, "second") == pytest.approx(speed)
    # What is measured alone replaces the estimate.
    second.beside(frozenset())
    measured(clock, [second], [40.0])
    assert speeds.of(second, "second") == 1.0


def test_nothing_is_learnt_where_no_speed_is_known_or_a_job_has_not_begun(clock) -> None:
    speeds, first, second = Speeds(), SpeedMeter(frozenset({2})), SpeedMeter(frozenset({1}))
    measured(clock, [first, second], [8.0, 20.0])
    speeds.learn([(first, "first"), (second, "second")])
    assert speeds.of(first, "first") is None and speeds.of(second, "second") is None
