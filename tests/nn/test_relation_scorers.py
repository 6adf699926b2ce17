"""Scorers with a table of relations, against their published formulas."""

import pytest
import torch

from penstock.nn import build_scorer
from penstock.nn.scorers import ScorerSettings, TransEScorer
from penstock.nn.scorers.distances import complex_distances
from penstock.nn.scorers.products import complex_magnitudes
from refusals import refused

WIDTH, RELATIONS = 8, 5


def as_complex(rows):
    return torch.complex(*rows.chunk(2, -1))


def formula(name, scorer, h, r, t, distance):
    """The published score of (head row, relation number, tail row), in its own terms."""
    vectors = scorer.vectors[r]
    if name == "distmult":
        return (h * vectors * t).sum(-1)
    if name == "complex":
        return (as_complex(h) * as_complex(vectors) * as_complex(t).conj()).sum(-1).real
    if name == "transe":
        return 9 - (h + vectors - t).norm(p=distance, dim=-1)
    return 9 - (as_complex(h) * torch.polar(torch.ones_like(vectors), vectors) - as_complex(t)).abs().sum(-1)


@pytest.mark.parametrize("name", ["distmult", "complex", "transe", "rotate"])
@pytest.mark.parametrize("distance", [1, 2])
def test_scores_are_the_published_ones_from_either_end(name, distance):
    torch.manual_seed(0)
    scorer = build_scorer(name, WIDTH, RELATIONS, ScorerSettings(distance=distance))
    h, t, r = torch.randn(12, WIDTH), torch.randn(12, WIDTH), torch.arange(12) % RELATIONS
    true = formula(name, scorer, h, r, t, distance)
    torch.testing.assert_close(scorer(h, t, r), true)
    for end, kept, other in (("destination", h, t), ("source", t, h)):
        queries = scorer.query(kept, r, end)
        torch.testing.assert_close(scorer.match(queries, other), true)
        table = scorer.compare(queries, other)
        torch.testing.assert_close(table.diagonal(), true)
        # In groups, as negatives that some triples share.
        grouped = scorer.compare(queries.view(3, 4, -1), other.view(3, 4, -1))
        torch.testing.assert_close(grouped[1], table[4:8, 4:8])
    scorer(h, t, r).sum().backward()
    assert scorer.vectors.grad is not None and scorer.vectors.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["distmult", "complex", "transe", "rotate"])
def test_an_inverse_relation_looks_for_heads_as_for_tails(name):
    scorer = build_scorer(name, WIDTH, RELATIONS, ScorerSettings(inverse=True))
    rows, r = torch.randn(6, WIDTH), torch.arange(6) % RELATIONS
    assert len(scorer.vectors) == 2 * RELATIONS
    vectors, end = scorer.relation_rows(r, "source")
    assert end == "destination"
    torch.testing.assert_close(scorer.query(rows, r, "source"), scorer.combine(rows, scorer.vectors[r + 5], end))
    assert torch.equal(vectors, scorer.vectors[r + 5])


@pytest.mark.parametrize("groups, size, k", [(1, 40, 7), (9, 1, 5), (3, 4, 6), (1, 1, 1)])
def test_distances_and_gradients_of_complex_rows_are_torchs(groups, size, k):
    torch.manual_seed(1)
    ours = torch.randn(groups, size, WIDTH, requires_grad=True), torch.randn(groups, k, WIDTH, requires_grad=True)
    theirs = tuple(each.detach().clone().requires_grad_() for each in ours)
    factors = torch.randn(groups, size, k)
    found, plain = (complex_distances(*ours), complex_magnitudes(theirs[0][:, :, None] - theirs[1][:, None]).sum(-1))
    torch.testing.assert_close(found, plain)
    (found * factors).sum().backward()
    (plain * factors).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    # Of equal rows, where the distance has no gradient, there is none.
    same = torch.ones(1, 2, WIDTH, requires_grad=True)
    complex_distances(same, same.detach()).sum().backward()
    assert torch.equal(same.grad, torch.zeros_like(same))


def test_rows_of_odd_width_are_no_complex_numbers():
    for name in ("complex", "rotate"):
        with refused(f"invalid-value {name} 7"):
            build_scorer(name, 7)


@pytest.mark.covering(1)
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 300, 20), (3, 5000, 33)])
def test_distances_without_gradients_rank_as_plain_ones(norm, sizes):
    """Of every query the same order as by distances in float64, but for what float32 cannot tell apart."""
    queries, count, width = sizes
    torch.manual_seed(0)
    points, rows = torch.randn(queries, width), torch.randn(count, width)
    rows[count // 2 :] = points[0] + 1e-3 * rows[count // 2 :]  # close to a query, where a product would lose digits
    scorer = TransEScorer(width, margin=0.0, distance=norm)
    exact = torch.cdist(points.double(), rows.double(), p=float(norm), compute_mode="donot_use_mm_for_euclid_dist")
    with torch.no_grad():
        found = -scorer.compare(points, rows)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found, -scorer.compare(points, rows.requires_grad_()).detach(), rtol=1e-5, atol=1e-6)
    order = found.argsort(dim=1)
    assert bool((exact.gather(1, order).diff(dim=1) > -1e-5 * exact.max()).all())
