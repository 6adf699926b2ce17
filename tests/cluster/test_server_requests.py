"""A parameter server believes nothing that comes over the wire."""

import numpy as np
import pytest

from penstock.cluster.server import Shard
from penstock.cluster.tasks.server import serve_shard
from penstock.train.job import make_job
from penstock.wire.message import Message
from refusals import refused

BEGIN = {"step": 0, "shapes": [[3], []], "names": [["momentum_buffer"], []], "again": False}
WEIGHTS = np.ones(4, np.float32), np.zeros(3, np.float32)
GIVEN = {"step": 0, "rate": 0.5, "more": 1}
GRADIENTS = np.array([1, 2, 3, 4, 1, 1, 9], np.float32)


class Handlers:
    """Takes the place of a post where no wire is needed."""

    def __init__(self, folder, **fields):
        self.kinds = {}
        job = make_job({"graph": "g", "fanouts": [2], "optimiser": "SGD", **fields})
        serve_shard(self, Shard(job, 2, folder / "state"), 2)

    def serve(self, kind, handler):
        self.kinds[kind] = handler

    def ask(self, kind, body, *arrays, sender="worker-0"):
        return self.kinds[kind](Message(kind, body, arrays), sender)


@pytest.fixture
def server(tmp_path):
    server = Handlers(tmp_path, clip=1.0)
    server.ask("begin", BEGIN, *WEIGHTS)
    return server


def test_what_is_well_asked_is_answered(server):
    assert server.ask("weights", {"step": 0}).kind == "wait"
    for rank in range(2):
        assert server.ask("gradients", GIVEN, GRADIENTS, sender=f"worker-{rank}").kind == "taken"
    assert server.ask("squares", {"step": 0}).body == {"squares": 120.0}
    assert server.ask("shrink", {"step": 0, "factor": 0.5}).kind == "shrunk"
    weights, more = server.ask("weights", {"step": 0}).arrays
    np.testing.assert_array_equal(weights, 1 - 0.5 * 0.5 * 2 * GRADIENTS[:4])
    assert more.tolist() == [18.0]
    assert server.ask("optimiser", {}).body["names"][1] == []


@pytest.mark.parametrize("sender", ["worker-2", "worker-x", "worker-", "sampler-0", "controller", "worker--1"])
@pytest.mark.parametrize("kind", ["begin", "gradients", "weights", "squares", "shrink", "optimiser"])
def test_who_is_no_worker_is_refused(server, sender, kind):
    bodies = {"begin": BEGIN, "gradients": GIVEN, "shrink": {"step": 0, "factor": 0.5}, "optimiser": {}}
    arrays = {"begin": WEIGHTS, "gradients": (GRADIENTS,)}.get(kind, ())
    with refused("not-permitted 2"):
        server.ask(kind, bodies.get(kind, {"step": 0}), *arrays, sender=sender)


def test_only_the_first_worker_gives_weights(server):
    with refused("not-available"):
        server.ask("begin", BEGIN, *WEIGHTS, sender="worker-1")


@pytest.mark.parametrize(
    "kind, body, said",
    [
        ("begin", {**BEGIN, "step": -1}, "step"),
        ("begin", {**BEGIN, "again": 1}, "again"),
        ("begin", {**BEGIN, "shapes": [[3], [-1]]}, "shapes"),
        ("begin", {**BEGIN, "shapes": [[3, 1], []]}, "shapes"),
        ("begin", {**BEGIN, "names": [["x" * 99], []]}, "names"),
        ("gradients", {**GIVEN, "rate": float("nan")}, "rate"),
        ("gradients", {**GIVEN, "rate": float("inf")}, "rate"),
        ("gradients", {**GIVEN, "rate": -1.0}, "rate"),
        ("gradients", {**GIVEN, "more": -7}, "more"),
        ("gradients", {"step": 0, "rate": 0.5}, "more"),
        ("weights", {}, "step"),
        ("squares", {"step": "0"}, "step"),
        ("shrink", {"step": 0, "factor": 1.5}, "factor"),
        ("shrink", {"step": 0, "factor": -0.5}, "factor"),
        ("shrink", {"step": 0, "factor": float("inf")}, "factor"),
    ],
)
def test_bodies_that_are_refused(server, kind, body, said):
    arrays = {"begin": WEIGHTS, "gradients": (GRADIENTS,)}.get(kind, ())
    with refused(f"malformed-message '{kind}' {said}"):
        server.ask(kind, body, *arrays)


@pytest.mark.parametrize(
    "arrays",
    [
        (),
        WEIGHTS[:1],
        (WEIGHTS[0].astype(np.float64), WEIGHTS[1]),
        (WEIGHTS[0][:3], WEIGHTS[1]),
        (WEIGHTS[0][None], WEIGHTS[1]),
        (WEIGHTS[0], WEIGHTS[1][:2]),
        (WEIGHTS[0], WEIGHTS[1].astype(np.uint8)),
    ],
    ids=lambda arrays: str([(array.shape, str(array.dtype)) for array in arrays]),
)
def test_weights_that_do_not_fit_are_refused(tmp_path, arrays):
    with refused("malformed-message"):
        Handlers(tmp_path).ask("begin", BEGIN, *arrays)


@pytest.mark.parametrize("arrays", [(), (GRADIENTS, GRADIENTS), (GRADIENTS.astype(np.float64),), (GRADIENTS[None],)])
def test_gradients_that_are_none_are_refused(server, arrays):
    with refused("malformed-message float32"):
        server.ask("gradients", GIVEN, *arrays)


def test_gradients_that_are_no_numbers_make_all_weights_none(server):
    """As torch clips them: the run hears of it with the next loss."""
    for rank in range(2):
        server.ask("gradients", GIVEN, GRADIENTS, sender=f"worker-{rank}")
    server.ask("shrink", {"step": 0, "factor": float("nan")})
    assert np.isnan(server.ask("weights", {"step": 0}).arrays[0]).all()
