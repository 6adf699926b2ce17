"""`sample_threads: auto` uses the host's cores where a GPU would wait for one thread that draws."""

import pytest
import torch

from penstock.train import auto_values
from penstock.train.assembly import session_of
from penstock.train.auto_values import decide_sample_threads
from penstock.train.build import make_session
from penstock.train.job import make_job
from training_graphs import community_graph

SAINT = {"sampler": "saint-vertex", "batch_size": 50, "layers": 2, "sample_on": "host"}


def decided(monkeypatch, cores, **fields):
    monkeypatch.setattr(auto_values, "default_threads", lambda: cores)
    session = session_of(make_job({"hidden": 8, **fields}), torch.device("cpu"), community_graph(200))
    decide_sample_threads(session)
    return session


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7), (200, 16)])
def test_a_sampler_of_the_host_has_all_cores_but_one(monkeypatch, cores, threads):
    session = decided(monkeypatch, cores, **SAINT)
    assert session.job.drawing_threads == session.decided["sample_threads"] == threads
    assert session.decided_by["sample_threads"] == "rule"


def test_a_job_s_own_threads_are_the_cores_that_it_has(monkeypatch):
    assert decided(monkeypatch, 8, threads=3, **SAINT).job.drawing_threads == 2


@pytest.mark.parametrize(
    ("fields", "threads"),
    [
        ({"sample_threads": 5, **SAINT}, 5),
        ({"fanouts": [5, 5]}, 1),
        ({"fanouts": [5, 5], "sample_on": "host"}, 7),
        ({"sampler": "whole"}, 1),
    ],
    ids=["said", "drawn by the GPU", "sampled on the host", "whole"],
)
def test_what_is_said_and_what_a_gpu_draws_stays(monkeypatch, fields, threads):
    assert decided(monkeypatch, 8, **fields).job.drawing_threads == threads


def test_features_larger_than_memory_are_read_by_eight_threads(monkeypatch, tmp_path):
    graph = community_graph(200).save(tmp_path / "graph")
    for free_mb, threads in ((1000, 1), (0, 8)):
        monkeypatch.setattr(auto_values, "available_mb", lambda free=free_mb: free)
        session = make_session(make_job({"hidden": 8, "device": "cpu"}), graph)
        assert session.job.reading_threads == threads
        assert session.decided.get("gather_threads", 1) == threads
    in_memory = make_session(make_job({"hidden": 8, "device": "cpu"}), community_graph(200))
    assert in_memory.job.reading_threads == 1
