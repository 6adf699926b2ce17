"""Two levels: sub-ranges inside every part, train vertices shared out, less cut than by lot."""

from itertools import pairwise

import numpy as np
import pytest

from penstock.graph.generate import make_graph, recipe_named
from penstock.partition import Cut, assign, assignment, cut
from penstock.progress import Progress


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("levels")
    graph = make_graph(recipe_named("synthetic-arxiv").scaled(0.05), folder / "graph")
    return graph, cut(graph, Cut(3, 4), folder / "parts")


def test_trainers_share_vertices_and_train_vertices(halves):
    graph, result = halves
    train = np.zeros(graph.num_nodes, bool)
    train[graph.split("train")] = True
    train = train[result.original()]
    for part in range(3):
        ranges = [result.book.range(part, trainer=t) for t in range(4)]
        assert ranges[0][0] == result.book.range(part)[0]
        assert ranges[-1][1] == result.book.range(part)[1]
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert max(result.document.trainer_balance.values()) < 1.1
        for share in ([b - a for a, b in ranges], [train[a:b].sum() for a, b in ranges]):
            assert max(share) <= 1.06 * np.mean(share) + 1


def test_sub_parts_cut_few_edges(halves):
    _, result = halves
    inside = same = 0
    for part in range(3):
        piece = result.part(part).edges[("node", "to", "node")]
        dst = result.book.range(part)[0] + piece.destinations()
        local = result.book.owner(piece.indices) == part
        inside += local.sum()
        same += (result.book.trainer(piece.indices[local]) == result.book.trainer(dst[local])).sum()
    assert same / inside > 0.6  # by lot it would be a quarter


def test_one_part_for_several_trainers(tmp_path, halves):
    graph, _ = halves
    result = cut(graph, Cut(1, 3), tmp_path / "one")
    assert result.part(0).num_edges == graph.num_edges
    assert len({result.book.range(0, trainer=t) for t in range(3)}) == 3


def test_original_order_inside_a_sub_part(halves):
    _, result = halves
    for part in range(3):
        for trainer in range(4):
            low, high = result.book.range(part, trainer=trainer)
            assert (np.diff(result.original()[low:high]) > 0).all()


@pytest.mark.parametrize("constraint", ["vertices", "edges", "train", "types"])
def test_trainers_share_train_vertices_whatever_parts_balance(tmp_path, halves, constraint):
    graph, _ = halves
    result = cut(graph, Cut(2, 3, balance=(constraint,)), tmp_path / "p")
    assert set(result.document.trainer_balance) == {"vertices", "train"}
    assert max(result.document.trainer_balance.values()) <= 1.06


@pytest.mark.parametrize("method", ["random", "stream"])
def test_without_metis_trainers_share_by_lot_and_it_is_said(tmp_path, halves, monkeypatch, method):
    monkeypatch.setattr(assignment, "metis_library", lambda: None)
    heard = Heard()
    result = cut(halves[0], Cut(4, 2, method), tmp_path / "p", progress=heard)
    assert max(result.document.trainer_balance.values()) < 1.02
    assert any("at random" in note for note in heard.notes)


class Heard(Progress):
    def note(self, sentence):
        self.notes.append(sentence)


@pytest.mark.long
def test_many_small_parts_are_never_empty(halves):
    heard = Heard()
    found = assign(halves[0], Cut(1500, method="metis", balance=("vertices", "train")), progress=heard)
    assert np.bincount(found.assignment, minlength=1500).min() >= 1
