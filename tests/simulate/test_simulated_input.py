"""Workloads, networks, amounts and placements that cannot be: one sentence each, naming what is wrong."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.simulate import POLICIES, GnnJob, PeakToMean, draw_amounts, gnn_workload, racks, simulate, star
from penstock.simulate.workload import Amounts, Quantiles, WorkloadBuilder, merge
from refusals import refused


def pair():
    building = WorkloadBuilder()
    first, second = building.task("first", "work", 1.0), building.task("second", "work", 1.0)
    building.flow(first, second, 1.0, "data")
    return building, first, second


def test_a_circle_is_named():
    building, first, second = pair()
    building.wait(second, first)
    with refused("invalid-document"):
        building.build()
    building, first, second = pair()
    building.wait(second, first, 1)
    assert building.build().items == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task_seconds": np.array([1.0, -2.0])}, "value-out-of-range -2"),
        ({"flow_bytes": np.array([np.nan])}, "value-out-of-range first->second"),
        ({"targets": np.array([7], np.int32)}, "id-out-of-range 7 0 1"),
        ({"lags": np.array([1, 1, 0, 0, -1], np.int32)}, "value-out-of-range -1"),
        ({"task_names": ("first", "first")}, "duplicate first"),
        ({"task_kinds": ("work",)}, "shape-mismatch task_kinds 1 2"),
        ({"resources": {"gpus": np.array([1.0, -1.0])}}, "shape-mismatch gpus"),
        ({"coflows": np.array([-1], np.int32)}, "value-out-of-range"),
    ],
)
def test_bad_workloads(change, sentence):
    load = pair()[0].build()
    with refused(sentence):
        replace(load, **change)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: star([1, 0], [1, 1]), "value-out-of-range m1 0 bytes/s"),
        (lambda: star([1, 1], [1, -3]), "value-out-of-range m1 -3"),
        (lambda: star([], []), "missing-data"),
        (lambda: star([1, 1], [1]), "shape-mismatch 2 1"),
        (lambda: star([1, 1], [1, 1], ["a", "a"]), "duplicate"),
        (lambda: racks([0, 1], [1, 1], [1, 1], 0), "value-out-of-range 0"),
        (lambda: star([1], [1]).machine("elsewhere"), "unknown-name elsewhere"),
        (lambda: POLICIES["oess"], "unknown-name oes"),
        (lambda: PeakToMean(0.5), "value-out-of-range peak-to-mean 0.5"),
        (lambda: Quantiles([]), "value-out-of-range"),
        (lambda: GnnJob(0, 1, 1), "value-out-of-range 0"),
        (lambda: GnnJob(1, 1, 1, prefetch=0), "value-out-of-range 0"),
        (lambda: GnnJob(1, 1, 1, resources={"workers": {}}), "unknown-name workers"),
        (lambda: gnn_workload(GnnJob(2, 1, 1, near_stores=[[1.0]])), "shape-mismatch 1"),
        (lambda: gnn_workload(GnnJob(2, 1, 1, near_stores=[[0.0, 0.0]])), "value-out-of-range"),
        (lambda: merge({}), "missing-data"),
        (lambda: pair()[0].build().tasks_of("worker"), "unknown-name worker"),
        (lambda: draw_amounts(pair()[0].build(), 0), "value-out-of-range 0"),
        (lambda: draw_amounts(pair()[0].build(), 1, 0, {"dta": PeakToMean(2)}), "unknown-name data"),
    ],
)
def test_bad_requests(make, sentence):
    with refused(sentence):
        make()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"placement": np.array([0])}, "shape-mismatch 1 2"),
        ({"placement": np.array([0, 2])}, "id-out-of-range 2 0 1"),
        ({"amounts": Amounts(np.ones((1, 3)), np.ones((1, 1)))}, "shape-mismatch"),
        ({"amounts": Amounts(np.ones((1, 2)), -np.ones((1, 1)))}, "value-out-of-range"),
        ({"speeds": np.array([1.0, 0.0])}, "shape-mismatch 2"),
    ],
)
def test_bad_simulations(options, sentence):
    with refused(sentence):
        simulate(pair()[0].build(), star([1, 1], [1, 1]), **{"placement": np.array([0, 1]), **options})
