"""Batch normalisation of padded rows on a device: torch's on the own rows, forward, gradients and statistics."""

import copy

import pytest
import torch

from penstock.nn.drop import dropping, relu_drop
from penstock.nn.norm import BatchNorm, PaddedBatch, normalising

pytestmark = pytest.mark.gpu


def made_norm(width):
    """With weights, and running statistics that have moved already."""
    torch.manual_seed(width)
    norm = BatchNorm(width)
    with torch.no_grad():
        for part in (norm.weight, norm.bias, norm.running_mean):
            part.copy_(torch.randn(width))
    return norm


def padded_rows(count, places, width, shift=0.0):
    """Rows whose places behind the batch's own hold nonsense."""
    rows = shift + torch.randn(places, width, generator=torch.Generator().manual_seed(3))
    rows[count:] = float("nan")
    return rows


def normalised_there(norm, rows, count, device, skip=0, share=None):
    """What a device makes of the rows, the gradients of the own ones and of the weights, and the module."""
    mine, given = copy.deepcopy(norm).to(device), rows.to(device).requires_grad_()
    state = torch.tensor([count], device=device), torch.tensor([skip], device=device)
    with normalising(PaddedBatch([state[0]], state[1])), dropping(7):
        if share is None:
            out = mine(given)
        else:
            later = mine.rectify_later(given, share)
            out = later.settled()
    weight = torch.zeros(out.shape)
    weight[:count] = torch.randn(count, rows.shape[1], generator=torch.Generator().manual_seed(4))
    grads = torch.autograd.grad((out * weight.to(device)).sum(), [given, mine.weight, mine.bias])
    return out.detach().cpu(), [grad.cpu() for grad in grads], mine, weight


def assert_same_statistics(mine, theirs):
    for name, right in theirs.named_buffers():
        torch.testing.assert_close(mine.get_buffer(name).cpu().to(right.dtype), right, rtol=1e-5, atol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("count", "places", "width", "shift"),
    [(600, 700, 20, 0.0), (5, 9, 3, 0.0), (300, 300, 130, 0.0), (513, 520, 8, 3e3)],
)
@pytest.mark.parametrize("share", [None, 0.4])
def test_as_torch_normalises_the_own_rows(count, places, width, shift, share, device):
    norm, rows = made_norm(width), padded_rows(count, places, width, shift)
    exact = copy.deepcopy(norm).double()
    own = rows[:count].double().requires_grad_()
    got, grads, mine, weight = normalised_there(norm, rows, count, device, share=share)
    with dropping(7):
        right = exact(own)
        right = right if share is None else relu_drop(right, share)
    expected = torch.autograd.grad((right * weight[:count]).sum(), [own, exact.weight, exact.bias])
    # Rows near 3000 are known to 2e-4 of their deviation.
    tolerance = 1e-5 if shift == 0 else 1e-3
    torch.testing.assert_close(got[:count].double(), right.detach(), rtol=tolerance, atol=tolerance)
    assert torch.equal(got[count:], torch.zeros_like(got[count:]))
    assert torch.equal(grads[0][count:], torch.zeros_like(got[count:]))
    for ours, theirs in zip([grads[0][:count], *grads[1:]], expected, strict=True):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * scale)
    assert_same_statistics(mine, exact)


def test_a_skipped_step_moves_no_statistics(device):
    norm, rows = made_norm(6), padded_rows(40, 50, 6)
    skipped, _, mine, _ = normalised_there(norm, rows, 40, device, skip=1)
    assert_same_statistics(mine, norm)
    assert torch.equal(skipped, normalised_there(norm, rows, 40, device)[0])


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_rows_are_normalised_by_the_running_statistics(count, device):
    norm, rows = made_norm(6), padded_rows(count, 8, 6)
    got, grads, mine, weight = normalised_there(norm, rows, count, device)
    own = rows[:count].requires_grad_()
    right = copy.deepcopy(norm).eval()(own)
    torch.testing.assert_close(got[:count], right.detach())
    if count:
        torch.testing.assert_close(grads[0][:1], torch.autograd.grad((right * weight[:1]).sum(), own)[0])
    assert_same_statistics(mine, norm)


def test_what_is_dropped_is_what_a_pass_of_its_own_drops(device):
    """Bit for bit, so that a model drops the same whether its steps are captured or not."""
    norm, rows = made_norm(12).to(device), padded_rows(30, 33, 12).to(device)
    state = torch.tensor([30], device=device), torch.tensor([0], device=device)
    with normalising(PaddedBatch([state[0]] * 2, state[1])), dropping(5):
        fused = norm.rectify_later(rows, 0.5).rows
    with normalising(PaddedBatch([state[0]] * 2, state[1])), dropping(5):
        apart = relu_drop(norm(rows), 0.5)
    assert torch.equal(fused, apart)
