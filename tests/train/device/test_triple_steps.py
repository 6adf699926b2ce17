"""Steps on triples as a device does them, by itself: the host's losses and rows, and the same bits if interrupted."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import bursts, schedule_of
from knowledge_graph import SCORER_CASES, TRIPLES, family_graph, shop_graph
from penstock.pipeline.schedule import START, Position
from penstock.train.build import make_session
from penstock.train.job import make_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_library_on_gpu"),
]
HOST = torch.device("cpu")
FEW = {
    "scorer": "distmult",
    "device": "cpu",
    "threads": 1,
    "epochs": 2,
    "task": "knowledge-graph-completion",
    "seed": 3,
}
CASES = {
    **SCORER_CASES,
    "by-degree": {"scorer": "distmult", "negatives": "joint", "negatives_per_edge": 5, "negatives_group": 16,
                  "negatives_power": 0.75, "regulariser": "l2", "regularisation": 0.1},
    "tails": {"scorer": "complex", "corrupt": "destination", "negatives_per_edge": 3, "filtered": False},
    "weighted": {"scorer": "rotate", "triple_weights": "frequency", "negatives": "joint", "negatives_per_edge": 8},
    "all-logistic": {"scorer": "transe", "distance": 2, "negatives": "all", "loss": "bce", "adversarial": 0.5},
    "unfiltered": {"scorer": "distmult", "filtered": False, "embedding_optimiser": "adagrad", "optimiser": "Adagrad",
                   "negatives": "all", "loss": "softmax"},
    "unread": {"scorer": "rotate", "batch_size": 4, "negatives": "joint", "negatives_per_edge": 3, "epochs": 1},
    "lazy": {"scorer": "transe", "batch_size": 4, "negatives": "joint", "negatives_per_edge": 3, "epochs": 1,
             "embedding_optimiser": "adam"},
}  # fmt: skip


def session_of(graph=None, **fields):
    from penstock.store.device.embedding import DeviceEmbeddingTable

    session = make_session(make_job({**FEW, **TRIPLES, **fields}), family_graph(24) if graph is None else graph)
    session.inputs.tables = {name: DeviceEmbeddingTable(t, HOST) for name, t in session.inputs.tables.items()}
    return session


def captured(session, start=START, until=None, pause=3):
    from penstock.train.steps.engine import Course
    from penstock.train.steps.triples import triple_steps

    schedule, done = schedule_of(session), []
    with triple_steps(session, Course(schedule, start, bursts(schedule, pause), lambda *_: None)) as steps:
        for some in steps:
            done += some
            if until is not None and len(done) >= until:
                break
        assert set(steps.times()) == {"sample", "compute"}
    return done


def loaded(session):
    done = []
    with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None) as steps:
        for some in steps:
            done += some
    return done


def learned(session):
    (table,) = session.inputs.tables.values()
    return [
        table.pull(np.arange(len(table.rows))),
        *(np.copy(each.detach().numpy()) for each in session.learned.state_dict().values()),
    ]


LONGER = ("transe", "tails", "weighted", "unfiltered")
"""What other cases, and the tests of kernels, have as well."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONGER)) for name in CASES])
def test_losses_and_rows_are_those_of_the_pipeline(name):
    ours, theirs = session_of(**CASES[name]), session_of(**CASES[name])
    found, expected = captured(ours), loaded(theirs)
    assert [(s.position, s.examples, s.last) for s in found] == [(s.position, s.examples, s.last) for s in expected]
    np.testing.assert_allclose([s.loss for s in found], [s.loss for s in expected], rtol=1e-4)
    for a, b in zip(learned(ours), learned(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=2e-4)
    (own,), (other,) = ours.inputs.tables.values(), theirs.inputs.tables.values()
    assert own.steps == other.steps == len(found)


@pytest.mark.parametrize("name", ["complex", pytest.param("rotate", marks=pytest.mark.long)])
def test_a_run_that_was_interrupted_has_the_same_bits(name):
    fields = {**CASES[name], "batch_size": 16}
    whole, parts, again = session_of(**fields), session_of(**fields), session_of(**fields)
    expected = captured(whole)
    first = captured(parts, until=3)
    assert len(first) == 3 < len(expected)
    again.learned.load_state_dict(parts.learned.state_dict())
    again.optimiser.load_state_dict(parts.optimiser.state_dict())
    again.inputs.restore(parts.inputs.state())
    rest = captured(again, Position(0, 3), pause=2)
    assert [s.loss for s in first + rest] == [s.loss for s in expected]
    assert all(np.array_equal(a, b) for a, b in zip(learned(again), learned(whole), strict=True))


def test_rates_of_an_epoch_are_those_at_its_beginning():
    """Embeddings whose rate follows the schedule learn nothing more once it is zero."""
    from penstock.train.steps.engine import Course
    from penstock.train.steps.triples import triple_steps

    fields = {"schedule": "StepLR", "schedule_options": {"step_size": 1, "gamma": 0.0}, "schedule_of": "all"}
    session = session_of(**fields, batch_size=64, negatives="joint", negatives_per_edge=3)
    schedule, seen = schedule_of(session), []
    with triple_steps(session, Course(schedule, START, bursts(schedule, 100), lambda *_: None)) as steps:
        for some in steps:
            if not some[-1].last:
                continue
            seen.append(learned(session)[0])
            session.schedule.step()
            session.follow_schedule()
    assert len(seen) == 2 and np.array_equal(*seen)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"capture": False}, "capture"),
        ({"clip": 1.0}, "clipped"),
        ({"optimiser": "RMSprop"}, "RMSprop"),
        ({"input_dropout": 0.1}, "dropped"),
    ],
)
def test_what_cannot_be_captured_is_said(fields, word):
    from penstock.train.steps.triples import reasons_against_capture

    assert reasons_against_capture(session_of()) == []
    (reason,) = reasons_against_capture(session_of(**fields))
    assert word in reason
    reasons = reasons_against_capture(session_of(shop_graph()))
    assert any("several types" in each for each in reasons)
