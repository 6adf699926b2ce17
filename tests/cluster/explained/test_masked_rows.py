"""Rows under masks and their gradients, against the formula in torch's own operations."""

import numpy as np
import torch

from penstock.cluster.worker.explained.explanation_graph import masked_rows


def test_rows_and_gradients_are_those_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    mean, remote = torch.randn(5, generator=generator), torch.randn(7, 5, generator=generator)
    weight = torch.randn(8, 5, generator=generator)
    found = []
    for own in (True, False):
        rows = torch.linspace(0.1, 0.9, 7).requires_grad_()
        columns = torch.linspace(0.2, 1.0, 5).requires_grad_()
        if own:
            out = masked_rows(mean, remote, rows, columns)
        else:
            out = torch.cat([mean[None], rows[:, None] * (columns * remote + (1 - columns) * mean)])
        (out * weight).square().sum().backward()
        found.append((out.detach(), rows.grad, columns.grad))
    for mine, plain in zip(*found, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=2e-5, atol=1e-6)


def test_a_type_without_remote_rows_has_its_mean_alone():
    rows, columns = torch.empty(0, requires_grad=True), torch.ones(3, requires_grad=True)
    out = masked_rows(torch.ones(3), torch.empty(0, 3), rows, columns)
    out.sum().backward()
    assert out.tolist() == [[1.0, 1.0, 1.0]] and columns.grad.tolist() == [0.0] * 3 and len(rows.grad) == 0
