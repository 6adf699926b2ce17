"""What the trace of a validation takes for the largest chunk of whole neighbourhoods is about the largest there is."""

import numpy as np
import pytest

from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.layerwise import host
from penstock.train.memory.forecast import forecast
from penstock.train.trace import fake_session
from penstock.train.trace.fake_session import _largest_neighbourhoods, _wanted
from training_graphs import community_graph, lists_of

SMALL = {"model": "sage", "fanouts": [3, 3], "hidden": 16, "batch_size": 16, "inference_mb": 1}


def loads(session, plan, rows):
    plan.start({"node": rows}, 0, 0)
    return [plan.load_of(each) for each in plan.neighbourhoods("node", rows)]


@pytest.mark.parametrize("share", [1 << 6, 1 << 13], ids=["many at a time", "one at a time"])
def test_the_largest_chunk_is_about_the_largest_of_all(share, monkeypatch):
    monkeypatch.setattr(host, "SHARE", share)
    session = make_session(job_of(SMALL), community_graph(4_000))
    rows, plan = np.arange(4_000), session.inference().plan
    found = loads(session, plan, rows)
    assert len(found) > 50
    plan.start({"node": rows}, 0, 0)
    picked = plan.load_of(_largest_neighbourhoods(session, plan, "node", rows))
    assert picked >= 0.97 * max(found)
    assert picked <= max(1.05 * max(found), plan.room)


def test_single_vertices_with_many_neighbours_are_among_the_largest(monkeypatch):
    """A third of the vertices has no neighbours, and a few in their midst have hundreds."""
    monkeypatch.setattr(host, "SHARE", 1 << 8)
    rng, count = np.random.default_rng(3), 3_000
    targets = np.concatenate([rng.integers(1_000, count, 12_000), np.repeat([2_000, 2_500], 900)])
    graph = community_graph(count)
    ((kind, _),) = graph.edges.items()
    graph.edges[kind] = lists_of(rng.integers(0, count, len(targets)), targets, count, count)
    session = make_session(job_of(SMALL), graph)
    rows, plan = np.arange(count), session.inference().plan
    found = loads(session, plan, rows)
    sampled = list[int]()
    neighbourhood = plan.neighbourhood
    monkeypatch.setattr(plan, "neighbourhood", lambda *given: _noted(sampled, plan, neighbourhood(*given)))
    plan.start({"node": rows}, 0, 0)
    assert plan.load_of(_largest_neighbourhoods(session, plan, "node", rows)) >= 0.97 * max(found)
    assert max(sampled) <= 4 * max(plan.room, max(found))


def _noted(sampled, plan, found):
    sampled.append(plan.load_of(found))
    return found


def test_vertices_of_drawn_splits_are_evaluated():
    graph = community_graph()
    graph.nodes["node"].splits.clear()
    session = make_session(job_of(SMALL | {"split": "ratio", "split_ratio": [0.5, 0.3, 0.2]}), graph)
    (val,) = _wanted(session, ["val"]).values()
    (both,) = _wanted(session, ["val", "test"]).values()
    assert (len(val), len(both)) == (60, 100)


def test_what_is_evaluated_of_a_large_graph_is_not_looked_for(monkeypatch):
    """Its chunks fill the working memory, whatever is evaluated."""
    graph, fields = community_graph(8_000), SMALL | {"hidden": 64, "epochs": 1, "device": "cpu", "graph": "in memory"}
    exact = forecast(job_of(fields), graph, device="cpu").host
    monkeypatch.setattr(fake_session, "_FEW_EDGES", 1_000)
    monkeypatch.setattr(host.HostPlan, "start", None)
    assert forecast(job_of(fields), graph, device="cpu").host == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("sampler", ["neighbour", "whole"])
def test_a_large_test_split_is_counted(sampler):
    """Outputs of most vertices are computed at the end of the run alone."""

    def host_bytes(test):
        graph = community_graph(8_000)
        rows = np.arange(8_000)
        graph.nodes["node"].splits = {"train": rows[:100], "val": rows[100:110], "test": rows[110 : 110 + test]}
        fields = SMALL | {"hidden": 64, "inference_mb": 32, "sampler": sampler, "epochs": 1, "device": "cpu"}
        return forecast(job_of({**fields, "graph": "in memory"}), graph, device="cpu").host

    assert host_bytes(7_000) > host_bytes(10) + 7_000 * 64 * 4


def test_an_evaluation_at_the_end_reads_more_than_validations_do():
    session = make_session(job_of(SMALL), community_graph())
    splits = session.graph.nodes["node"].splits
    (val,) = _wanted(session, ["val"]).values()
    (both,) = _wanted(session, ["val", "test"]).values()
    assert np.array_equal(val, np.sort(splits["val"]))
    assert np.array_equal(both, np.union1d(splits["val"], splits["test"]))
