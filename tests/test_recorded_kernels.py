"""Recorded kernels give what the interpreter gives, whatever values and numbers of programs come later."""

import importlib.util

import numpy as np
import pytest
import torch

from recorded_kernels import high_bits

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU"),
]
if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def scaled(x, factor):
        return x * factor

    @triton.jit
    def fold(x, out, count, B: tl.constexpr):
        """out[p] = programs * (x + x, summed over a row) + how often the row's first value halves until it is 0."""
        p = tl.program_id(0)
        at = tl.arange(0, B)
        row = tl.load(x + p * B + at, mask=at < count, other=0)
        total = tl.sum(row + row, axis=0) * tl.num_programs(0)
        left = tl.load(x + p * B)
        while left > 0:
            left = left // 2
            total += 1
        tl.store(out + p, scaled(total, 3))
        tl.atomic_add(out + tl.num_programs(0), tl.max(row, axis=0))


def test_later_calls_have_other_values_and_other_numbers_of_programs():
    rng = np.random.default_rng(0)
    for rows, count in ((5, 4), (3, 4), (9, 2), (1, 1), (6, 3)):
        x = rng.integers(0, 50, (rows, 4))
        out = torch.zeros(rows + 1, dtype=torch.int64)
        fold[(rows,)](torch.from_numpy(x), out, count, B=4)
        halved = [int(first).bit_length() for first in x[:, 0]]
        assert out[:rows].tolist() == (3 * (2 * rows * x[:, :count].sum(1) + halved)).tolist()
        assert out[rows] == x[:, :count].max(1).sum()


def test_upper_bits_of_products_are_exact():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 1 << 64, (2, 1000), dtype=np.uint64)
    a[:2], b[:2] = (1 << 64) - 1, ((1 << 64) - 1, 1)
    assert high_bits(a, b).tolist() == [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]
