"""Rectifier and dropout left to the reader: the same numbers and gradients as carried out."""

from itertools import pairwise

import pytest
import torch
from random_blocks import random_block

from penstock.nn import build_model
from penstock.nn.drop import dropping, rectify_later, relu_drop
from penstock.nn.layer_table import model_options
from penstock.sampling.device.block import device_block

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("width", [3, 16, 33])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_settled_rows_are_those_of_the_host(width, share, device):
    z = torch.randn(11, width)
    ours, theirs = z.clone().to(device).requires_grad_(), z.clone().requires_grad_()
    with dropping(77):
        settled = rectify_later(ours * 1, share).settled()
    with dropping(77):
        expected = relu_drop(theirs * 1, share)
    torch.testing.assert_close(settled.cpu(), expected)
    given = torch.randn(11, width)
    settled.backward(given.to(device))
    expected.backward(given)
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.covering(1)
@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("aggregate", ["mean", "sum"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_model_that_leaves_rectifying_to_its_layers_learns_the_same(norm, aggregate, dropout, device):
    torch.manual_seed(3)
    options = model_options(model="sage", layers=3, hidden=12, aggregate=aggregate, dropout=dropout, norm=norm)
    host, ours = build_model(options, 7, 5), build_model(options, 7, 5).to(device)
    ours.load_state_dict(host.state_dict())
    blocks = _three_blocks()
    x, given = torch.randn(blocks[0].num_src, 7), torch.randn(blocks[-1].num_dst, 5)
    with dropping(5):
        expected = host(blocks, x)
    with dropping(5):
        out = ours([device_block(block, device) for block in blocks], x.to(device))
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.backward(given)
    out.backward(given.to(device))
    for (name, mine), theirs in zip(ours.named_parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def _three_blocks():
    sizes = [40, 22, 9, 4]
    return [random_block(num_src, num_dst, 3 * num_dst) for num_src, num_dst in pairwise(sizes)]
