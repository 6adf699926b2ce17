"""What the trace of a validation takes for the largest chunk of whole neighbourhoods is about the largest there is."""

import numpy as np
import pytest

from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.layerwise import host
from penstock.train.trace.inference import _largest_neighbourhoods, _wanted
from training_graphs import community_graph

SMALL = {"model": "sage", "fanouts": [3, 3], "hidden": 16, "batch_size": 16, "inference_mb": 1}


def loads(session, plan, rows):
    plan.start({"node": rows}, 0, 0)
    return [plan.load_of(each) for each in plan.neighbourhoods("node", rows)]


@pytest.mark.parametrize("share", [1 << 6, 1 << 13], ids=["many at a time", "one at a time"])
def test_the_largest_chunk_is_about_the_largest_of_all(share, monkeypatch):
    monkeypatch.setattr(host, "SHARE", share)
    session = make_session(make_job(SMALL), community_graph(4_000))
    rows, plan = np.arange(4_000), session.inference().plan
    found = loads(session, plan, rows)
    assert len(found) > 50
    plan.start({"node": rows}, 0, 0)
    picked = plan.load_of(_largest_neighbourhoods(session, plan, "node", rows))
    assert picked >= 0.97 * max(found)
    assert picked <= max(1.05 * max(found), plan.room)


def test_an_evaluation_at_the_end_reads_more_than_validations_do():
    session = make_session(make_job(SMALL), community_graph())
    splits = session.graph.nodes["node"].splits
    (val,) = _wanted(session, ["val"]).values()
    (both,) = _wanted(session, ["val", "test"]).values()
    assert np.array_equal(val, np.sort(splits["val"]))
    assert np.array_equal(both, np.union1d(splits["val"], splits["test"]))
