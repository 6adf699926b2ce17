"""A fused step that is given weights in pieces does what torch's does, to the bit."""

import pytest
import torch

from penstock.train import optimisers
from penstock.train.optimisers import in_pieces


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_pieces_have_the_bits_of_the_whole(kind, monkeypatch):
    monkeypatch.setattr(optimisers, "_LEAST", 8)
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in [(7, 13), (5,), (), (40, 3)]]
    ends = []
    for chosen in (kind, in_pieces(kind)):
        weights = [torch.nn.Parameter(each.clone()) for each in start]
        optimiser = chosen(weights, lr=0.1, weight_decay=0.01, fused=True)
        generator = torch.Generator().manual_seed(1)
        for number in range(5):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            weights[3].grad = torch.randn(3, 40, generator=generator).t()
            # The third step is skipped, as one whose batch lacked room is.
            optimiser.found_inf = torch.tensor(float(number == 2))
            optimiser.step()
        ends.append([*weights, *(value for state in optimiser.state.values() for value in state.values())])
        assert [float(state["step"]) for state in optimiser.state.values()] == [4.0] * 4
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


def test_an_optimiser_without_counts_of_steps_is_left_alone():
    assert in_pieces(torch.optim.SGD) is torch.optim.SGD
