"""Dropout by a hash: the right share, the right expectation, repeatable, the same on any number of threads."""

import numpy as np
import pytest
import torch
from random_blocks import rows
from torch.autograd import gradcheck

from penstock import PenstockError
from penstock.nn.device.drop import DropKey
from penstock.nn.drop import _Drop, drop, relu_drop
from penstock.nn.threads import plain_chunks


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_rest_scaled(share):
    torch.manual_seed(0)
    count = 400_000
    out = drop(torch.ones(4000, 100), share)
    kept = out > 0
    # Five standard deviations of a binomial share.
    assert abs(float((~kept).float().mean()) - share) < 5 * np.sqrt(share * (1 - share) / count)
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - share)), rtol=1e-3, atol=0)
    # No column and no row is favoured.
    for dim, size in ((0, 4000), (1, 100)):
        spread = ((~kept).float().mean(dim=dim) - share).abs().max()
        assert spread < 5.5 * np.sqrt(share * (1 - share) / size)


def test_neighbouring_numbers_are_independent():
    torch.manual_seed(0)
    kept = (drop(torch.ones(4000, 100), 0.5) > 0).double() - 0.5
    for shift in (1, 2, 3, 4):
        assert abs(float((kept[:, shift:] * kept[:, :-shift]).mean())) < 5 * 0.25 / np.sqrt(kept[:, shift:].numel())
    assert abs(float((kept[1:] * kept[:-1]).mean())) < 5 * 0.25 / np.sqrt(kept[1:].numel())


def test_gradients():
    x = rows(7, 5, dtype=torch.float64)
    assert gradcheck(lambda x: _Drop.apply(x, 0.4, DropKey(3)), (x,))
    torch.manual_seed(0)
    out = relu_drop(x * 1, 0.4)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, grad * x)
    torch.manual_seed(0)
    torch.testing.assert_close(out, drop(x.relu(), 0.4))


def test_nothing_dropped_is_the_rectifier():
    torch.testing.assert_close(relu_drop(rows(7, 5) * 1, 0.0), rows(7, 5).relu())
    x = rows(7, 5)
    assert drop(x, 0.0) is x


def test_torch_s_seed_repeats_it_and_every_call_differs():
    torch.manual_seed(5)
    one, two = drop(torch.ones(50, 20), 0.5), drop(torch.ones(50, 20), 0.5)
    torch.manual_seed(5)
    assert torch.equal(one, drop(torch.ones(50, 20), 0.5))
    assert not torch.equal(one, two)


def test_the_same_on_any_number_of_threads():
    assert len(plain_chunks(20000, 67)) > 4
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            results.append(relu_drop(rows(20000, 67, grad=False), 0.3))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_what_cannot_be_dropped_is_refused():
    with pytest.raises(PenstockError, match="no kernels for device 'meta' yet"):
        drop(torch.empty(3, 2, device="meta"), 0.5)
    with pytest.raises(PenstockError, match="a row per vertex"):
        drop(torch.ones(3), 0.5)
