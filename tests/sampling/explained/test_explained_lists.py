"""Draws by explanations from parts here and behind the wire: the same, whoever draws."""

from dataclasses import dataclass

import numpy as np
import pytest

from meeting_posts import meeting_posts
from neighbourhoods import same_batch
from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.partition import Cut, cut
from penstock.sampling import BatchKey
from penstock.sampling.explained import SCORES, ExplainedLists, ReachedParts, serve_explained_draws
from penstock.sampling.explanation import FLOOR, SamplingExplanation, largest_columns, scores_of
from penstock.sampling.parts import OwnedPart, parted_lists, parted_sampler, serve_lists
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message
from refusals import refused

COUNT, PARTS, KIND = 200, 4, ("node", "to", "node")


@dataclass(frozen=True)
class AllHere(ReachedParts):
    """All parts are mapped, and only the first is home."""

    def home(self, node_type):
        return np.array([self.book.range(0, node_type)], np.int64)


@pytest.fixture(scope="module")
def partition(tmp_path_factory):
    rng = np.random.default_rng(0)
    indptr, indices, _ = build_lists(*rng.integers(0, COUNT, (2, 3000)), COUNT, COUNT)
    graph = Graph({"node": NodeSet(COUNT)}, {KIND: EdgeSet(indptr, indices)}, "plain")
    return cut(graph, Cut(PARTS, 1, "random"), tmp_path_factory.mktemp("cut") / "parts")


@pytest.fixture
def owners(partition):
    """A worker's channels to two tasks that hold the parts in turn, and the tasks' posts."""
    with meeting_posts() as posts:
        worker, *stores = posts("worker", "store-0", "store-1")
        for number, endpoint in enumerate(stores):
            held = {part: OwnedPart.of(partition, part) for part in range(number, PARTS, 2)}
            serve_lists(endpoint, held)
            serve_explained_draws(endpoint, held)
        yield worker, lambda part: worker.channel(f"store-{part % 2}", "draws")


def explanation_of(partition, version=1, seed=0):
    rng, first = np.random.default_rng(seed), partition.book.range(0, "node")[1]
    halo = np.sort(rng.choice(np.arange(first, COUNT), 60, replace=False)).astype(np.int32)
    return SamplingExplanation(version, {"node": scores_of(halo, rng.random(60))}, {})


def batch_by(partition, reached, explanation, key, bias=0.1):
    local, channels = reached.local, reached.channels
    plain = parted_lists(partition, local=local, channels=channels).readable.relations[KIND]
    sampler = parted_sampler(partition, [5, 4], local=local, channels=channels)
    lists = ExplainedLists(KIND, reached, plain, explanation, bias)
    return sampler.drawing_from({KIND: lists}).sample(np.arange(3, 40, 5), key)


def test_owners_draw_as_one_process_does(partition, owners):
    _, channels = owners
    sent = []
    every = {part: OwnedPart.of(partition, part) for part in range(PARTS)}
    for version in (1, 2):
        explanation = explanation_of(partition, version, seed=version)
        here = AllHere(partition.book, every, channels)
        there = ReachedParts(partition.book, {0: every[0]}, channels, sent.append)
        for batch in range(3):
            key = BatchKey(1, 0, batch)
            found = batch_by(partition, there, explanation, key)
            same_batch(found, batch_by(partition, here, explanation, key))
            assert all(block.weights is not None and block.totals is not None for block in found.blocks)
        # The two tasks that draw get the scores once for each version: a vertex's number and a byte.
        assert sent == [60 * 5] * (2 * version)


def test_remote_draws_follow_scores_and_bias(partition):
    every = {part: OwnedPart.of(partition, part) for part in range(PARTS)}
    reached, explanation = AllHere(partition.book, every, None), explanation_of(partition)
    last, counts = partition.book.range(0, "node")[1], {}
    for bias in (0.0, 0.3):
        remote = 0
        for number in range(40):
            batch = batch_by(partition, reached, explanation, BatchKey(0, 0, number), bias)
            remote += int((batch.vertices["node"][batch.blocks[-1].indices] >= last).sum())
        counts[bias] = remote
    assert counts[0.3] < 0.75 * counts[0.0]


def test_scores_are_between_floor_and_one_and_columns_are_the_largest():
    scores = scores_of(np.arange(4), np.array([0.2, 0.6, 0.4, 0.2]))
    np.testing.assert_allclose(scores.values(), [FLOOR, 1, (1 + FLOOR) / 2, FLOOR], atol=0.003)
    assert scores_of(np.arange(3), np.full(3, 0.4)).values().tolist() == [1, 1, 1]
    assert len(scores_of(np.arange(0), np.empty(0)).vertices) == 0
    mask = np.array([0.5, 0.1, 0.9, 0.5])
    assert largest_columns(mask, 0.5).tolist() == [0, 2]
    assert largest_columns(mask, 0.85).tolist() == [0, 1, 2, 3]
    assert largest_columns(mask, 0.01).tolist() == [2]


def test_scores_that_are_none_are_refused(partition, owners):
    _, channels = owners
    body = {"node_type": "node", "version": 1, "other": 9}
    numbers, levels = np.arange(5), np.ones(5, np.uint8)
    for arrays in ((numbers[::-1].copy(), levels), (numbers + COUNT, levels), (numbers, levels - 1), (numbers,)):
        with refused("malformed-message", RemoteError):
            channels(0).call(Message(SCORES, body, arrays))
    with refused("malformed-message", RemoteError):
        channels(0).call(Message(SCORES, {**body, "node_type": "nobody"}, (numbers, levels)))
