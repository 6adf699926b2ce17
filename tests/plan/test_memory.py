"""Memory over time, where it can be said by hand."""

import numpy as np

from penstock.plan.workloads.entry import HeldMemory, memory_over_time
from penstock.simulate import simulate, star
from penstock.simulate.workload import WorkloadBuilder


def test_what_is_taken_and_given_back_adds_up_on_each_machine() -> None:
    """A forward task of 1 s and a backward task of 2 s, three times; activations live from one to the other."""
    building = WorkloadBuilder()
    forward = building.task("forward", "work", 1.0)
    backward = building.task("backward", "work", 2.0)
    building.wait(forward, backward)
    building.task("other", "work", 0.5)
    load, where = building.build(), np.array([0, 0, 1])
    timeline = simulate(load, star([1.0, 1.0], [1.0, 1.0]), where, 3, "fair")
    held = [
        HeldMemory("forward", 2.0, until="backward"),
        HeldMemory("forward", 5.0),
        HeldMemory("other", 1.0, "cuda", until="other", lag=1),
    ]
    curves = memory_over_time(timeline, where, held)
    host, device = curves["m0", "cpu"], curves["m1", "cuda"]
    # Forward tasks end at 1, 2 and 3 s, backward ones at 3, 5 and 7 s.
    assert [(float(t), float(gb)) for t, gb in zip(host.seconds, host.gb, strict=True)] == [
        (0.0, 2.0),
        (0.0, 7.0),
        (1.0, 9.0),
        (2.0, 11.0),
        (3.0, 9.0),
        (5.0, 7.0),
        (7.0, 5.0),
    ]
    assert host.peak == 11.0 and device.peak == 2.0


def test_nothing_held_is_no_curve() -> None:
    building = WorkloadBuilder()
    building.task("alone", "work", 1.0)
    timeline = simulate(building.build(), star([1.0], [1.0]), np.array([0]), 1, "fair")
    assert memory_over_time(timeline, np.array([0]), []) == {}
