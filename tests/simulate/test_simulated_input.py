"""Workloads, networks, amounts and placements that cannot be: one sentence each, naming what is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.simulate import (
    Amounts,
    GnnJob,
    PeakToMean,
    Quantiles,
    WorkloadBuilder,
    draw_amounts,
    gnn_workload,
    merge,
    policy_named,
    racks,
    simulate,
    star,
)


def pair():
    building = WorkloadBuilder()
    first, second = building.task("first", "work", 1.0), building.task("second", "work", 1.0)
    building.flow(first, second, 1.0, "data")
    return building, first, second


def test_a_circle_is_named():
    building, first, second = pair()
    building.wait(second, first)
    with pytest.raises(PenstockError, match=r"waits for itself .*(first -> first->second -> second|second -> first)"):
        building.build()
    building, first, second = pair()
    building.wait(second, first, 1)
    assert building.build().items == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task_seconds": np.array([1.0, -2.0])}, "second of the workload has -2 seconds"),
        ({"flow_bytes": np.array([np.nan])}, "first->second of the workload has nan bytes"),
        ({"targets": np.array([7], np.int32)}, "names target task 7, but has 0 to 1"),
        ({"lags": np.array([1, 1, 0, 0, -1], np.int32)}, "with a lag of -1 iterations"),
        ({"task_names": ("first", "first")}, "are called 'first'"),
        ({"task_kinds": ("work",)}, "task_kinds has 1 entries where 2"),
        ({"resources": {"gpus": np.array([1.0, -1.0])}}, "resource 'gpus'"),
        ({"coflows": np.array([-1], np.int32)}, "coflow with a negative number"),
    ],
)
def test_bad_workloads(change, sentence):
    load = pair()[0].build()
    with pytest.raises(PenstockError, match=sentence):
        replace(load, **change)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: star([1, 0], [1, 1]), "m1 in has a rate of 0 bytes/s"),
        (lambda: star([1, 1], [1, -3]), "m1 out has a rate of -3"),
        (lambda: star([], []), "no machines"),
        (lambda: star([1, 1], [1]), "2 incoming rates, 1 outgoing"),
        (lambda: star([1, 1], [1, 1], ["a", "a"]), "one name"),
        (lambda: racks([0, 1], [1, 1], [1, 1], 0), "oversubscription of 0"),
        (lambda: star([1], [1]).machine("elsewhere"), "No machine is called 'elsewhere'"),
        (lambda: policy_named("oess"), "did you mean 'oes'"),
        (lambda: PeakToMean(0.5), "peak-to-mean ratio of 0.5"),
        (lambda: Quantiles([]), "measured sample"),
        (lambda: GnnJob(0, 1, 1), "0 stores"),
        (lambda: GnnJob(1, 1, 1, prefetch=0), "prefetch of 0"),
        (lambda: GnnJob(1, 1, 1, resources={"workers": {}}), "'workers'"),
        (lambda: gnn_workload(GnnJob(2, 1, 1, near_stores=[[1.0]])), r"shape \(1, 1\)"),
        (lambda: gnn_workload(GnnJob(2, 1, 1, near_stores=[[0.0, 0.0]])), "pulls from no store"),
        (lambda: merge({}), "no workload to merge"),
        (lambda: pair()[0].build().tasks_of("worker"), "no task of kind 'worker'"),
        (lambda: draw_amounts(pair()[0].build(), 0), "0 iterations"),
        (lambda: draw_amounts(pair()[0].build(), 1, 0, {"dta": PeakToMean(2)}), "did you mean 'data'"),
    ],
)
def test_bad_requests(make, sentence):
    with pytest.raises(PenstockError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"placement": np.array([0])}, "has 1 tasks, the workload 2"),
        ({"placement": np.array([0, 2])}, "second is placed on machine 2, but there are 0 to 1"),
        ({"amounts": Amounts(np.ones((1, 3)), np.ones((1, 1)))}, "draw them for this workload"),
        ({"amounts": Amounts(np.ones((1, 2)), -np.ones((1, 1)))}, "negative or not finite"),
        ({"speeds": np.array([1.0, 0.0])}, "speeds must be 2 finite numbers"),
    ],
)
def test_bad_simulations(options, sentence):
    with pytest.raises(PenstockError, match=sentence):
        simulate(pair()[0].build(), star([1, 1], [1, 1]), **{"placement": np.array([0, 1]), **options})
