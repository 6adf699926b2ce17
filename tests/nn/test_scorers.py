"""Scores of pairs."""

import torch
from random_blocks import rows

from penstock.nn import EdgeClassifier, build_scorer
from refusals import refused


def test_dot():
    score = build_scorer("dot", 4)
    torch.testing.assert_close(score(rows(3, 4), rows(3, 4)), rows(3, 4).square().sum(dim=1))
    # One source against several candidates, as ranking does.
    assert score(rows(3, 4)[:, None], rows(15, 4).view(3, 5, 4)).shape == (3, 5)


def test_distmult_takes_the_relation_s_vector():
    score, a, b = build_scorer("distmult", 4, 3), rows(2, 4), rows(2, 4, 1)
    relation = torch.tensor([2, 0])
    out = score(a, b, relation)
    torch.testing.assert_close(out[0], (a[0] * score.vectors[2] * b[0]).sum())
    torch.testing.assert_close(out[1], (a[1] * score.vectors[0] * b[1]).sum())
    with refused("option-missing 3"):
        score(a, b)
    assert build_scorer("distmult", 4)(a, b).shape == (2,)


def test_mlp_is_symmetric_and_trains():
    score, a, b = build_scorer("mlp", 4), rows(6, 4), rows(6, 4, 1)
    torch.testing.assert_close(score(a, b), score(b, a))
    score(a, b).sum().backward()
    assert all(value.grad is not None for value in score.parameters())


def test_classes_of_edges():
    head = EdgeClassifier(4, 3)
    assert head(rows(6, 4), rows(6, 4, 1)).shape == (6, 3)


def test_unknown_scorers_are_refused():
    with refused("unknown-name cosine"):
        build_scorer("cosine", 4)
