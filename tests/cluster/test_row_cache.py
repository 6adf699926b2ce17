"""Rows that a worker reads most on its GPU, the others from their source: the same rows, and less to ask for."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from interpreted_kernels import one_launch_at_a_time
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.build import make_session
from penstock.train.job import make_job
from refusals import refused
from training_graphs import community_graph, typed_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_cluster_on_gpu"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 16, "epochs": 1, "device": "cpu", "threads": 1, "graph": "g"}
PLENTY = 1 << 40


@pytest.fixture
def free(monkeypatch):
    """The bytes of a made-up device, all free."""
    one_launch_at_a_time(monkeypatch)
    found = [PLENTY]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (found[0], found[0]))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)
    return found


def session_of(rows, graph=None, **fields):
    """A session whose device is the host."""
    placement = {"cache_rows": rows} if rows else "auto"
    return make_session(make_job({**FEW, "placement": placement, **fields}), graph or community_graph(120))


def whole(planned):
    """The share of a worker that is alone."""
    return planned._replace(whole=len(planned.seeds))


def placed(session, monkeypatch):
    """The session placed as on a worker whose graph stays with the stores."""
    from penstock.cluster.worker import device_placement
    from penstock.cluster.worker import device_placement as placement
    from penstock.train.device.memory import NOTHING

    monkeypatch.setattr(device_placement, "tried_steps", lambda *_: NOTHING)
    monkeypatch.setattr(placement, "device_peak", lambda *_: None)
    parts = SimpleNamespace(owned={}, partition=SimpleNamespace(parts=1))
    return placement.place_on_worker(session, parts, whole, 1.0, True)


def losses(session):
    """Of all steps, one at a time."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, session.job.epochs)
    with session.execution.steps(schedule, Position(0, 0), lambda _: 1, lambda *_: None) as steps:
        return [step.loss for some in steps for step in some]


def test_training_is_the_same_with_a_cache(free, monkeypatch):
    plain, cached = session_of(0), session_of(30)
    assert placed(plain, monkeypatch).facts()["cache_rows"] == 0
    found = placed(cached, monkeypatch)
    assert losses(plain) == losses(cached)
    facts = found.facts()
    assert (facts["topology"], facts["features"], facts["cache_rows"]) == ("host", "host", 30)
    # More than the share of the rows: they are those that are read most.
    assert 30 / 120 < facts["hit_rate"] < 1 and any("30 rows" in sentence for sentence in facts["why"])
    assert found.predicted_bytes >= 30 * cached.inputs.widths["node"] * 4
    assert facts["predicted_by"] == "traced" and "predicted_reason" not in facts
    assert found.decision.working.parts["weights"] > 0


def test_a_worker_whose_step_cannot_be_traced_tries_small_ones_and_says_why(free, monkeypatch):
    class Asking(torch.nn.Module):
        """Scales rows by what they are."""

        def forward(self, x):
            return x / max(1.0, float(x.abs().max()))

    session = session_of(0, norm="layer")
    norms = [name for name, part in session.model.named_modules() if isinstance(part, torch.nn.LayerNorm)]
    parent, _, last = norms[0].rpartition(".")
    setattr(session.model.get_submodule(parent), last, Asking())
    facts = placed(session, monkeypatch).facts()
    assert facts["predicted_by"] == "trial" and "meta" in facts["predicted_reason"]
    assert any("cannot be traced" in sentence for sentence in facts["why"])


def test_the_rows_that_are_read_most_are_kept(free):
    from penstock.cluster.worker.device_placement import with_cached_rows

    session = session_of(25)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, 1)
    counts = np.zeros(120, int)
    for planned in schedule.from_position():
        np.add.at(counts, session.task.sample(planned).vertices["node"], 1)
    monotone = np.sort(counts)[::-1]
    source = with_cached_rows(session, whole)
    kept = np.flatnonzero(source._slots >= 0)
    assert len(kept) == 25
    # Epochs are as long as there are training vertices, and some of the second are counted too.
    assert counts[kept].sum() > 0.8 * monotone[:25].sum()


@pytest.mark.parametrize(
    "rows, fields, said",
    [
        (121, {}, "value-out-of-range cache_rows 121 120"),
        (5, {"graph_of": typed_graph}, "unsupported-combination cache_rows"),
    ],
)
def test_caches_that_a_graph_cannot_have(free, monkeypatch, rows, fields, said):
    graph = fields["graph_of"]() if fields else None
    with refused(said):
        placed(session_of(rows, graph), monkeypatch)


def test_a_cache_that_does_not_fit_says_what_would(free, monkeypatch):
    session = session_of(0)
    needed = placed(session, monkeypatch).predicted_bytes
    free[0] = round((needed + 100 * 16) / session.job.device_share)
    assert placed(session_of(90), monkeypatch).facts()["cache_rows"] == 90
    with refused("out-of-memory cache_rows 110"):
        placed(session_of(110), monkeypatch)
