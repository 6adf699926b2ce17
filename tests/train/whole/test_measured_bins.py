"""Bins as a profile measures them."""

from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.run_context import run_context
from penstock.train.whole.measured import measure_bins
from training_graphs import typed_graph

JOB = {"sampler": "whole", "scope": "all", "model": "rgcn", "layers": 2, "hidden": 8, "embedding": 4, "threads": 1}


def test_a_type_with_fewer_vertices_than_bins_is_measured():
    job = job_of(JOB)
    with run_context(job):
        found = list(measure_bins(make_session(job, typed_graph(150)), 1))
    assert {each.layer for each in found} == {0, 1}
    assert len({each.rows for each in found}) > 2
    for each in found:
        assert each.rows and each.inputs
        assert each.forward_s >= 0 and each.backward_s >= 0
        assert (each.width_in, each.width_out) == ((4, 8) if each.layer == 0 else (8, 3))
