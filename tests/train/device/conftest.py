"""Training by kernels that Triton's interpreter runs where there is no GPU."""

import importlib.util

import pytest
import torch

from interpreted_kernels import overflow_unchecked


@pytest.fixture(autouse=True)
def _quick_sums(monkeypatch):
    """Integers that overflow are found by the tests of each kernel."""
    if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
        overflow_unchecked(monkeypatch)
