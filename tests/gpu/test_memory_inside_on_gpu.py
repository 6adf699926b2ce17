"""What operations of a GPU take for themselves is what the trace of a job's memory counts."""

import pytest
import torch

from penstock.train.trace.inside import memory_inside
from penstock.train.trace.libraries import measure_libraries

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


def taken_inside(work):
    """Bytes that some work takes at most, beside what it returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = work()
    torch.cuda.synchronize()
    inside = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del kept
    assert torch.cuda.memory_allocated() == before
    return inside


@pytest.mark.parametrize(("rows", "columns"), [(100, 64), (2_708, 64), (169_343, 64), (600_000, 64), (50_000, 20)])
def test_sums_of_columns(rows, columns):
    measure_libraries(torch.device("cuda"))
    x = torch.ones(rows, columns, device="cuda")
    x.sum(0)
    (expected,) = memory_inside(torch.ops.aten.sum.dim_IntList, (x, [0]), {})
    assert taken_inside(lambda: x.sum(0)) == pytest.approx(expected, rel=0.02, abs=1 << 16)


@pytest.mark.parametrize("keys", [1_500_000, 8_000_000])
def test_long_sorts(keys):
    x = torch.randint(0, 1 << 20, (keys,), dtype=torch.int32, device="cuda")
    expected = sum(memory_inside(torch.ops.aten.sort.stable, (x,), {}))
    assert taken_inside(lambda: torch.sort(x, stable=True)) == pytest.approx(expected, rel=0.05)
