"""What operations of a GPU take for themselves is what the trace of a job's memory counts."""

import os
import subprocess
import sys

import pytest
import torch

from penstock.trace.kernel_rates import KernelRates
from penstock.trace.libraries import measure_libraries, memory_inside

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


def taken_inside(work):
    """Bytes that some work asks for at most, beside what it returns: a block of memory may be larger."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = work()
    torch.cuda.synchronize()
    found = torch.cuda.memory_stats()
    del kept
    assert torch.cuda.memory_allocated() == before
    return found["requested_bytes.all.peak"] - found["requested_bytes.all.current"]


def test_rates_are_measured_once_and_kept(tmp_path):
    # In a process of its own, as a service does.
    program = (
        "import penstock.trace.kernel_rates as rates;"
        "rates.measure_kernel_rates();"
        "rates._measured = None;"
        "rates.measure_kernel_rates();"
        "print(rates.kernel_rates().model_dump_json())"
    )
    environment = {**os.environ, "PENSTOCK_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    found = KernelRates.model_validate_json(done.stdout)
    assert found.measured_on and (tmp_path / "kernel_rates.json").exists()
    # Of any GPU of these years: memory of 0.1 to 20 TB/s, and starts of 0.2 to 50 microseconds.
    assert 1e11 < found.bytes_s < 2e13 and 1e12 < found.flops_s < 1e15
    assert 2e-7 < found.replayed_s < found.launched_s < 5e-5


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
