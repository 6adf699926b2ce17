"""Training on features that are read from the disk past the page cache: when that is done, and equal losses."""

import json

import pytest
from test_resume import assert_same_runs

from penstock.plan.document import read_plan
from penstock.store.disk_rows import DiskRows
from penstock.store.source import ArraySource
from penstock.train.build import make_session
from penstock.train.dataset import inputs
from penstock.train.job import make_job
from penstock.train.memory import host_forecast
from penstock.train.memory.forecast import forecast
from refusals import refused
from training_graphs import community_graph, trained

FIELDS = {"hidden": 8, "device": "cpu"}


@pytest.fixture
def graph(tmp_path):
    return community_graph(400).save(tmp_path / "graph")


def session_with(monkeypatch, graph, free_mb, **fields):
    """The session of a job on a machine with so much free memory."""
    monkeypatch.setattr(inputs, "available_mb", lambda: free_mb)
    monkeypatch.setattr(inputs, "file_mb", lambda: 100.0)
    return make_session(make_job({**FIELDS, **fields}), graph)


@pytest.mark.parametrize("free_mb", [0, 1000])
def test_features_larger_than_memory_are_read_from_the_disk(monkeypatch, graph, free_mb):
    session = session_with(monkeypatch, graph, free_mb)
    (source,) = session.inputs.sources.values()
    assert isinstance(source, ArraySource if free_mb else DiskRows)
    assert (session.inputs.note is None) == bool(free_mb)


@pytest.mark.parametrize(("free_mb", "threads"), [(0, 1), (1000, 16)])
def test_as_many_batches_are_read_together_as_their_rows_have_room(monkeypatch, graph, free_mb, threads):
    session = session_with(monkeypatch, graph, free_mb, placement={"features": "disk"})
    assert session.job.reading_threads == session.decided["gather_threads"] == threads
    (source,) = session.inputs.sources.values()
    assert len(source.cache.rows) == (len(graph.nodes["node"].x) if free_mb else 0)


@pytest.mark.parametrize(("fields", "kind"), [
    ({"placement": {"features": "host"}}, ArraySource),
    ({"sampler": "whole"}, ArraySource),
    ({"placement": {"features": "disk", "cache_rows": 7}}, DiskRows),
])  # fmt: skip
def test_a_job_says_how_features_are_read(monkeypatch, graph, fields, kind):
    session = session_with(monkeypatch, graph, 1000 if kind is DiskRows else 0, **fields)
    (source,) = session.inputs.sources.values()
    assert isinstance(source, kind)
    if isinstance(source, DiskRows):
        assert len(source.cache.rows) == 7


@pytest.mark.parametrize("cache_rows", [0, 20, 400])
def test_losses_are_those_of_the_mapped_features(graph, tmp_path, cache_rows):
    ways = {"mapped": {"features": "host"}, "disk": {"features": "disk", "cache_rows": cache_rows}}
    runs = [trained(graph, tmp_path / name, epochs=3, batch_size=32, placement=way) for name, way in ways.items()]
    assert_same_runs(*runs)
    plan = read_plan(runs[1].path / "plan.json")
    assert plan.reasons["features"] == "The job has features read from the disk, past the page cache."


def test_the_plan_of_a_run_decides_the_same_again(monkeypatch, graph, tmp_path):
    monkeypatch.setattr(inputs, "available_mb", lambda: 0)
    run = trained(graph, tmp_path / "run", epochs=1)
    text = json.loads((run.path / "plan.json").read_text())
    assert "larger than the memory that is free" in read_plan(run.path / "plan.json").reasons["features"]
    assert '"features": "disk"' in json.dumps(text)


def test_the_forecast_counts_what_is_cached(monkeypatch, graph):
    monkeypatch.setattr(host_forecast, "process_bytes", lambda on_gpu, sampler: 0)
    job = make_job({**FIELDS, "placement": {"features": "disk", "cache_rows": 10}})
    (source,) = make_session(job, graph).inputs.sources.values()
    assert forecast(job, graph).host_categories["features"] == source.memory_bytes


def test_features_in_memory_are_not_on_the_disk():
    with refused("unsupported-combination placement disk"):
        make_session(make_job({**FIELDS, "placement": {"features": "disk"}}), community_graph(200))
