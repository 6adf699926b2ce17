"""The factor to which all workers come, as torch would have it."""

from types import SimpleNamespace

import pytest
import torch

from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.worker_group import clip_factor


@pytest.mark.parametrize("numbers", [[3.0, 4.0], [0.1, 0.2], [float("inf"), 1.0], [float("nan"), 1.0]], ids=str)
def test_the_factor_is_torchs(numbers):
    """Also of gradients that are no numbers: nothing is learned from them as if they were zeros."""
    told, inputs = [], object.__new__(PartedInputs)
    inputs.tables = {
        "node": SimpleNamespace(
            remote=SimpleNamespace(squares=lambda step: numbers[1] ** 2, shrink=lambda *a: told.append(a))
        )
    }
    inputs.step = 7
    session = SimpleNamespace(inputs=inputs, job=SimpleNamespace(clip=1.0))
    factor = clip_factor(session, numbers[0] ** 2)
    whole, probe = (torch.nn.Parameter(torch.zeros(len(numbers))) for _ in range(2))
    whole.grad, probe.grad = torch.tensor(numbers), torch.zeros(len(numbers))
    norm = torch.nn.utils.get_total_norm([whole.grad])
    probe.grad += 1
    torch.nn.utils.clip_grads_with_norm_([probe], 1.0, norm)
    assert factor == pytest.approx(float(probe.grad[0]), rel=1e-5, nan_ok=True)
    assert [step for step, _ in told] == [7] and told[0][1] == pytest.approx(factor, nan_ok=True)
