"""The bytes that a plan predicts for ways of sending fewer, beside those that runs count."""

import numpy as np
import pytest
from pytest import approx

from cluster_runs import cluster_file, in_parts, machines, result_of, run_on
from penstock.hardware.cluster import ClusterDocument
from penstock.pipeline.options import PipelineOptions
from penstock.plan import changes
from penstock.plan.changes import ways_of
from penstock.plan.workloads import PlannedRun
from penstock.sampling.entry import ExplainInternals
from plan_profiles import profile_of
from training_graphs import community_graph

WIDTH, EPOCHS, EVERY = 128, 12, 5
JOB = {"fanouts": [4, 3], "batch_size": 60}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predicted")
    graph = community_graph(1200, degree=10)
    graph.nodes["node"].fields["x"] = np.random.default_rng(0).normal(size=(1200, WIDTH)).astype(np.float32)
    graph = graph.save(folder / "graph")
    return folder, graph, in_parts(graph, 2, folder)


@pytest.fixture(scope="module")
def predicted(place):
    """The factor on bytes of rows by setting, its number left out."""
    _, graph, parts = place
    cluster = ClusterDocument(machines=machines(1, 1), partition=parts)
    profile = profile_of(2, 2).model_copy(update={"job": {**JOB, "sampler": "neighbour", "features": "x"}})
    planned = PlannedRun(cluster, PipelineOptions(), profile, open_graph=lambda: graph)
    # What explanations read is counted apart in runs; of a halo that they have as a whole, plans count nothing.
    with pytest.MonkeyPatch.context() as patch:
        whole = ExplainInternals(explain_rows=graph.num_nodes)
        patch.setattr(changes, "ExplainInternals", lambda: whole)
        ways = ways_of(planned, [0, 1])
    return {way.what.partition(" with ")[0] + " with" * (" with " in way.what): way for way in ways}


def rows_of(place, name, fields=None, **transport):
    """(bytes of rows that a run has counted, steps)."""
    folder, graph, parts = place
    cluster = cluster_file(folder, machines=machines(1, 1), partition=parts, **transport)
    fields = {**JOB, "epochs": EPOCHS, "evaluate_every": -1, "batch_size": 60, **(fields or {})}
    result = result_of(run_on(cluster, graph.path, folder / name, **fields).path)
    return result["batch_bytes"]["rows"], result["steps"]


@pytest.fixture(scope="module")
def plain(place):
    return rows_of(place, "plain")


@pytest.mark.long
def test_rows_of_sampler_explained_are_as_predicted(place, plain, predicted):
    explained = {"sampler": "explained", "explain_every": EVERY, "explain_delay": 0, "explain_steps": 3}
    counted, steps = rows_of(place, "explained", {**explained, "explain_rows": 64})
    each = plain[0] / plain[1]
    factor = (counted - EVERY * each) / (steps - EVERY) / each
    assert factor == approx(predicted["sampler: explained"].factor, rel=0.07)


@pytest.mark.long
def test_rows_of_a_cache_are_as_predicted(place, plain, predicted):
    (name,) = (each for each in predicted if each.startswith("remote_cache_mb"))
    counted, _ = rows_of(place, "cached", remote_cache_mb=float(name.partition(": ")[2]))
    # The first time, cached rows travel too.
    assert counted / plain[0] == approx(predicted[name].factor, rel=0.07)


@pytest.mark.long
def test_narrow_rows_are_as_predicted(place, plain, predicted):
    counted, _ = rows_of(place, "narrow", wire_type="int8")
    assert counted / plain[0] == approx(predicted["wire_type: int8"].factor, rel=0.07)
