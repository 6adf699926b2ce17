"""Distances on a device: equal to torch's in float64, forward and every gradient, whatever the sizes of tiles."""

import pytest
import torch

from penstock.nn.scorers.distances import device_distances
from penstock.nn.scorers.products import complex_magnitudes

pytestmark = pytest.mark.gpu


def plain(left, right, complex_rows):
    """By an array of all differences."""
    apart = left.unsqueeze(-2) - right.unsqueeze(-3)
    return (complex_magnitudes(apart) if complex_rows else apart.abs()).sum(-1)


@pytest.mark.parametrize("complex_rows", [False, True])
@pytest.mark.parametrize(("groups", "m", "k", "width"), [(1, 1, 1, 2), (2, 17, 33, 10), (3, 5, 9, 36), (1, 16, 32, 16)])
def test_equal_to_all_differences(device, complex_rows, groups, m, k, width):
    torch.manual_seed(groups + width)
    left, right, given = torch.randn(groups, m, width), torch.randn(groups, k, width), torch.randn(groups, m, k)
    exact = [each.double().requires_grad_() for each in (left, right)]
    right_answer = plain(*exact, complex_rows)
    gradients = torch.autograd.grad((right_answer * given.double()).sum(), exact)
    moved = [each.to(device).requires_grad_() for each in (left, right)]
    found = device_distances(*moved, complex_rows)
    torch.testing.assert_close(found.cpu().double(), right_answer, rtol=1e-5, atol=1e-5)
    for mine, correct in zip(torch.autograd.grad((found * given.to(device)).sum(), moved), gradients, strict=True):
        torch.testing.assert_close(mine.cpu().double(), correct, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("complex_rows", [False, True])
def test_equal_rows_have_no_gradient(device, complex_rows):
    rows = torch.ones(1, 3, 4, device=device).requires_grad_()
    found = device_distances(rows, rows.detach(), complex_rows)
    assert not found.any()
    (gradient,) = torch.autograd.grad(found.sum(), rows)
    assert not gradient.any()


def test_no_candidates(device):
    rows = torch.ones(1, 3, 4, device=device).requires_grad_()
    found = device_distances(rows, torch.ones(1, 0, 4, device=device), True)
    (gradient,) = torch.autograd.grad(found.sum(), rows)
    assert found.shape == (1, 3, 0) and not gradient.any()
