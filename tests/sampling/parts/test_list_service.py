"""Owners answer what is well asked, and refuse the rest with a sentence; a worker believes no answer either."""

import numpy as np
import pytest
from cut_and_sampled import KEY, cut_at_random, plain_graph, typed_graph

from penstock.sampling.parts import OwnedPart, parted_sampler, service
from penstock.sampling.parts.graph import edge_fields_of
from penstock.sampling.parts.service import serve_lists
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message
from refusals import refused

DRAW = {"part": 0, "relation": "node__to__node", "weight": None, "key": 5, "fanout": 3, "replace": False}
TOTALS = {"part": 0, "relation": "node__to__node", "weight": None}


class Handlers:
    """Takes the place of a post where no wire is needed."""

    name = "store"

    def __init__(self, parts):
        self.kinds = {}
        serve_lists(self, parts)

    def serve(self, kind, handler):
        self.kinds[kind] = handler

    def ask(self, kind, body, *arrays):
        return self.kinds[kind](Message(kind, body, arrays), "worker")


@pytest.fixture
def partition(tmp_path):
    return cut_at_random(plain_graph(), 2, tmp_path)


@pytest.fixture
def store(partition):
    return Handlers({0: OwnedPart.of(partition, 0)})


def mine(partition, amount=5):
    first, _ = partition.book.range(0)
    return np.arange(first, first + amount, dtype=np.int32)


def test_answers_are_as_narrow_as_they_can_be(partition, store):
    counts, sources = store.ask("draw", DRAW, mine(partition)).arrays
    assert (counts.dtype, sources.dtype) == (np.uint8, np.int32)
    assert counts.sum() == len(sources)
    (all_counts, _) = store.ask("draw", {**DRAW, "fanout": 400, "replace": True}, mine(partition)).arrays
    assert all_counts.dtype == np.uint16
    *_, weights = store.ask("draw", {**DRAW, "weight": "w"}, mine(partition)).arrays
    assert weights.dtype == np.float32
    (totals,) = store.ask("totals", TOTALS, mine(partition)).arrays
    np.testing.assert_array_equal(totals, np.diff(partition.part(0).indptr)[:5].astype(np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"part": 1}, "not-available 1 0"),
        ({"part": -1}, "malformed-message part"),
        ({"part": True}, "malformed-message part"),
        ({"part": "0"}, "malformed-message part"),
        ({"relation": "node__likes__node"}, "unknown-name node__likes__node"),
        ({"relation": 7}, "malformed-message relation"),
        ({"weight": "nothing"}, "field-missing nothing"),
        ({"key": -1}, "malformed-message key"),
        ({"key": 1 << 64}, "malformed-message key"),
        ({"key": 1.5}, "malformed-message key"),
        ({"fanout": 0}, "value-out-of-range 0"),
        ({"fanout": -2}, "malformed-message fanout"),
        ({"fanout": 1 << 31}, "malformed-message fanout"),
        ({"replace": 1}, "malformed-message replace"),
        ({"times": "t"}, "malformed-message times"),
        ({"time": "t"}, "field-missing t"),
        ({"time": "w"}, "malformed-message 1"),
        ({"time": "node:w"}, "unsupported-combination"),
    ],
)
def test_bodies_that_are_refused(partition, store, change, message):
    with refused(message):
        store.ask("draw", {**DRAW, **change}, mine(partition))


@pytest.mark.parametrize("missing", list(DRAW))
def test_nothing_may_be_missing(partition, store, missing):
    with refused(f"malformed-message {missing}"):
        store.ask("draw", {name: value for name, value in DRAW.items() if name != missing}, mine(partition))


@pytest.mark.parametrize("kind", ["draw", "totals"])
def test_arrays_that_are_refused(partition, store, kind):
    body, vertices = DRAW if kind == "draw" else TOTALS, mine(partition)
    last = partition.book.range(0)[1]
    pairs = np.zeros((2, 1), np.int64)
    for arrays, message in [
        ((), "malformed-message 0"),
        ((vertices, pairs, pairs), "malformed-message 3"),
        ((np.array([last]),), "id-out-of-range"),
        ((np.array([-1]),), "id-out-of-range"),
        ((np.array([1 << 40]),), "id-out-of-range"),
        ((vertices.astype(np.float32),), "shape-mismatch"),
        ((vertices.astype(np.uint64),), "shape-mismatch"),
        ((vertices[None],), "shape-mismatch"),
        ((vertices, pairs[0]), "shape-mismatch"),
        ((vertices, pairs.T.copy()[:1].repeat(3, 0)), "shape-mismatch"),
        ((vertices, pairs.astype(np.float64)), "shape-mismatch"),
        ((vertices, pairs + np.array([[-1], [0]])), "id-out-of-range"),
        ((vertices, pairs + np.array([[300], [0]])), "id-out-of-range"),
        ((vertices, pairs + np.array([[0], [last]])), "id-out-of-range"),
        ((vertices, pairs + np.array([[0], [-1]])), "id-out-of-range"),
    ]:
        with refused(message):
            store.ask(kind, body, *arrays)


def test_too_much_at_once_is_refused(partition, store, monkeypatch):
    monkeypatch.setattr(service, "MOST_EDGES", 10)
    with refused("too-large 10"):
        store.ask("draw", {**DRAW, "fanout": 1 << 30, "replace": True}, mine(partition))


def test_shared_draws_refuse_what_they_would_not_hear(partition, store):
    """And also what is too much only once it is drawn: fan-outs are their mean."""
    shared = {**DRAW, "shared": True}
    absent = {"key": 1, "end": 2, "unordered": False, "turned": False}
    pairs = np.zeros((2, 1), np.int64)
    seen = np.zeros(5, np.int64), np.zeros(5)
    for change, arrays, named in [
        ({"weight": "w"}, (), "weight"),
        ({"absent": absent}, (), "absent"),
        ({"replace": True}, (), "replace"),
        ({"time": "w"}, seen, "time"),
        ({}, (pairs,), "excluded edges"),
    ]:
        with refused(f"unsupported-combination {named}"):
            store.ask("draw", {**shared, **change}, mine(partition), *arrays)
    assert len(store.ask("draw", shared, mine(partition)).arrays) == 3


def test_shared_draws_that_become_too_many_are_refused(partition, store, monkeypatch):
    everything = mine(partition, 150)
    amounts = [
        int(store.ask("draw", {**DRAW, "shared": True, "key": key}, everything).arrays[0].sum()) for key in range(20)
    ]
    most = OwnedPart.of(partition, 0).lists("node__to__node").most(everything, 3)
    key = int(np.argmax(amounts))
    assert amounts[key] > most
    monkeypatch.setattr(service, "MOST_EDGES", most)
    with refused(f"too-large {amounts[key]:,}"):
        store.ask("draw", {**DRAW, "shared": True, "key": key}, everything)


def test_sums_of_weights_are_made_once(partition, monkeypatch):
    made = []
    from penstock.sampling import lists

    real = lists.weights_of
    monkeypatch.setattr(lists, "weights_of", lambda *args: made.append(args[1]) or real(*args))
    store = Handlers({0: OwnedPart.of(partition, 0)})
    for replace in (False, True, False):
        store.ask("draw", {**DRAW, "weight": "w", "replace": replace}, mine(partition))
    store.ask("totals", {**TOTALS, "weight": "w"}, mine(partition))
    assert made == ["w"]


def test_a_part_and_its_names_belong_together(partition):
    with refused("shape-mismatch"):
        OwnedPart(partition.part(0), {"node": partition.original()})


def test_owners_tell_what_they_hold(tmp_path, owners):
    graph = typed_graph()
    _, channels = owners(cut_at_random(graph, 2, tmp_path))
    assert list(edge_fields_of(channels(1), 1)) == graph.edge_types
    with refused("not-available store-0 1"):
        edge_fields_of(channels(0), 1)


def test_a_refusal_reaches_the_worker(partition, owners):
    _, channels = owners(partition)
    sampler = parted_sampler(partition, [2], weight="nothing", channels=channels)
    with refused("field-missing nothing", RemoteError):
        sampler.sample(np.arange(20), KEY)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), "malformed-message"),
        ((np.ones(2, np.uint8), np.zeros(2, np.int32)), "malformed-message"),
        ((np.ones(3, np.uint8), np.zeros(4, np.int32)), "malformed-message"),
        ((np.ones(3, np.int8), np.zeros(3, np.int32)), "malformed-message"),
        ((np.ones(3, np.uint8), np.zeros(3, np.int64)), "malformed-message"),
        ((np.ones(3, np.uint8), np.full(3, 300, np.int32)), "malformed-message"),
        ((np.ones(3, np.uint8), np.full(3, -1, np.int32)), "malformed-message"),
    ],
)
def test_a_worker_believes_no_answer(partition, posts, arrays, message):
    worker, other = posts("worker", "store")
    other.serve("draw", lambda asked, sender: Message("draw", {}, arrays))
    local = {1: OwnedPart.of(partition, 1)}
    sampler = parted_sampler(partition, [2], local=local, channels=lambda part: worker.channel("store"))
    with refused(message):
        sampler.sample(mine(partition, 3), KEY)


@pytest.mark.parametrize("arrays", [(), (np.zeros(2, np.float32),), (np.zeros(3, np.float64),)])
def test_a_worker_believes_no_totals(partition, posts, arrays):
    worker, other = posts("worker", "store")
    other.serve("draw", lambda asked, sender: Message("draw", {}, (np.zeros(3, np.uint8), np.zeros(0, np.int32))))
    other.serve("totals", lambda asked, sender: Message("totals", {}, arrays))
    local = {1: OwnedPart.of(partition, 1)}
    sampler = parted_sampler(partition, [2], totals=True, local=local, channels=lambda part: worker.channel("store"))
    with refused("malformed-message"):
        sampler.sample(mine(partition, 3), KEY)
