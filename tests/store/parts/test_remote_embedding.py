"""A table over parts learns as one on one machine does, through lost and repeated messages and dead owners."""

import numpy as np
import pytest

from penstock.store.embedding import EmbeddingTable
from penstock.store.initial_rows import InitialRows
from penstock.store.parts import EmbeddingService, RemoteEmbedding, own_embedding
from penstock.wire.channel import RemoteError
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import make_credentials
from refusals import refused

WIDTH, SEED, RATE = 4, 3, 0.1
COUNT = 600


INITIAL = {"dense-adam": InitialRows("normal", 0.1)}
"""By optimiser, what rows begin with; the others' are as usual."""


def owners(folder, partition, parts, optimiser="adam"):
    how = {"initial": INITIAL.get(optimiser)}
    given = "paper", WIDTH, optimiser, RATE, SEED
    return {("paper", p): own_embedding(folder, partition, p, *given, **how) for p in parts}


def worker(partition, endpoint, optimiser="adam"):
    names = partition.original("paper")
    return RemoteEmbedding(
        "paper", partition.book, WIDTH, optimiser, lambda p: endpoint.channel(f"store-{p % 2}"), names
    )


@pytest.fixture
def tables(cuts, posts, tmp_path):
    """(owners' tables, a worker's): two stores hold the parts in turn."""
    opened = []

    def make(parts, optimiser="adam"):
        partition = cuts(parts)
        *stores, reader = posts("store-0", "store-1", "reader")
        held = [owners(tmp_path, partition, range(k, parts, 2), optimiser) for k in (0, 1)]
        for endpoint, share in zip(stores, held, strict=True):
            EmbeddingService(endpoint, share)
            opened.extend(share.values())
        return partition, worker(partition, reader, optimiser)

    yield make
    for owned in opened:
        owned.close()


def learn(partition, remote, table, steps, world):
    """Steps on both; a rank's batch is of vertices anywhere, and in one step of nobody's part."""
    to_new = np.argsort(partition.original("paper"))
    for step in steps:
        total, touched = np.zeros((COUNT, WIDTH), np.float32), np.zeros(COUNT, bool)
        for rank in range(world):
            rng = np.random.default_rng([step, rank])
            original = rng.permutation(COUNT)[: rng.integers(0, 40) if step != 2 else 2]
            new = to_new[original]
            np.testing.assert_array_equal(remote.pull(new, step), table.pull(original))
            gradients = rng.normal(size=(len(new), WIDTH)).astype(np.float32)
            for _ in range(1 + (step + rank) % 2):
                remote.push(new, gradients, step, rank, world)
            total[original] += gradients
            touched[original] = True
        ids = np.flatnonzero(touched)
        table.push(ids, total[ids])


@pytest.mark.covering(1)
@pytest.mark.parametrize("optimiser", ["adam", "dense-adam", "adagrad"])
@pytest.mark.parametrize(("parts", "world"), [(1, 1), (2, 2), (4, 3)])
def test_learning_equals_one_table(tables, parts, world, optimiser):
    partition, remote = tables(parts, optimiser)
    table = EmbeddingTable("paper", COUNT, WIDTH, optimiser, RATE, SEED, initial=INITIAL.get(optimiser))
    np.testing.assert_array_equal(remote.pull(np.arange(COUNT), 0), table.pull(partition.original("paper")))
    learn(partition, remote, table, range(5), world)
    state = remote.state(5)
    assert state.keys() == table.state().keys()
    for key, value in table.state().items():
        np.testing.assert_array_equal(state[key], value)
    ids = np.array([5, 9, 5, 599, 9])
    np.testing.assert_array_equal(remote.pull(ids, 5), table.pull(partition.original("paper")[ids]))
    assert remote.traffic().bytes == remote.traffic().minimum == remote.traffic().rows * 16


def test_a_checkpoint_of_the_uncut_graph_is_taken_up(tables):
    partition, remote = tables(4)
    table = EmbeddingTable("paper", COUNT, WIDTH, "adam", RATE, SEED)
    learn(partition, remote, table, range(2), 2)
    other = EmbeddingTable("paper", COUNT, WIDTH, "adam", RATE, SEED + 1)
    other.push(np.arange(9), np.ones((9, WIDTH)))
    remote.restore(other.state(), 40)
    learn(partition, remote, other, range(40, 43), 2)
    np.testing.assert_array_equal(remote.state(43)["rows"], other.rows)
    with refused("mismatched-inputs"):
        remote.restore({**other.state(), "rows": other.rows[1:]}, 1)


def test_a_rank_that_did_not_push_is_named_and_told_apart(tables):
    _, remote = tables(2)
    remote.push(np.array([1, 599]), np.ones((2, WIDTH)), 0, 0, 2)
    with refused("step-conflict 1 2", RemoteError) as caught:
        remote.pull(np.array([0]), 1)
    assert caught.value.type == "PushMissing"
    remote.push(np.array([4]), None, 0, 1, 2)
    remote.pull(np.arange(COUNT), 1)
    with refused("step-conflict 0", RemoteError) as caught:
        remote.pull(np.array([0]), 0)
    assert caught.value.type == "StepPast"


def test_bad_requests_are_refused(tables):
    _, remote = tables(2)
    for ask, words in [
        (lambda: remote.pull(np.array([COUNT]), 0), "id-out-of-range 0"),
        (lambda: remote.push(np.array([0]), np.ones((1, 3)), 0, 0, 1), "shape-mismatch"),
        (lambda: remote.push(np.array([0]), np.ones((1, WIDTH)), 0, 1, 1), "malformed-message 1"),
        (lambda: remote.pull(np.array([0]), 0, np.empty((1, 3), np.float32)), "shape-mismatch"),
        (lambda: remote.pull(np.array([0]), -1), "malformed-message"),
    ]:
        with refused(words):
            ask()
    channel = remote._channels(0)
    body = {"table": "paper", "part": 0, "step": 0}
    for message, words in [
        (Message("embed-pull", {**body, "part": 1}, (np.array([0]),)), "not-available paper 1"),
        (Message("embed-pull", body, (np.array([0.5]),)), "malformed-message"),
        (Message("embed-pull", body, (np.array([-1]),)), "id-out-of-range 0"),
        (Message("embed-pull", {**body, "step": "0"}, (np.array([0]),)), "malformed-message"),
        (Message("embed-restore", {**body, "token": "a", "start": 0, "steps": 0}), "malformed-message"),
    ]:
        with refused(words, RemoteError):
            list(channel.start(message).parts())


def test_an_owner_that_dies_between_push_and_step_comes_back_with_everything(cuts, tmp_path):
    partition, table = cuts(2), EmbeddingTable("paper", COUNT, WIDTH, "adam", RATE, SEED)
    credentials = make_credentials(["store-0", "store-1", "reader"])
    options = WireOptions(security="token", call_timeout=20.0)
    with Endpoint(credentials["reader"], options=options) as reader:
        remote = worker(partition, reader)
        for life in range(3):
            held = owners(tmp_path, partition, range(2))
            with (
                Endpoint(credentials["store-0"], options=options) as first,
                Endpoint(credentials["store-1"], options=options) as second,
            ):
                for endpoint in (first, second):
                    EmbeddingService(endpoint, held)
                    reader.meet(endpoint.name, endpoint.address)
                learn(partition, remote, table, range(2 * life, 2 * life + 2), 2)
            for owned in held.values():
                owned.close()
    held = owners(tmp_path, partition, range(2))
    for (_, part), owned in held.items():
        owned.reach(6)
        names = partition.original("paper")[slice(*partition.book.range(part, "paper"))]
        np.testing.assert_array_equal(owned.rows, table.rows[names])
        owned.close()
