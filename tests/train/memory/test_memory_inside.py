"""What operations of a GPU take for themselves, by the rules of torch's kernels (see test_memory_inside_on_gpu)."""

import itertools

import pytest
import torch

from penstock.trace import libraries
from penstock.trace.allocations import Allocations
from penstock.trace.libraries import LibraryMemory, column_sums_bytes, memory_inside


@pytest.fixture(autouse=True)
def _stated(monkeypatch):
    """The numbers of an H200, whatever was measured on this machine."""
    monkeypatch.setattr(libraries, "library_memory", lambda: LibraryMemory.model_validate({}))


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        # Seen on an H200 as 0.3, 21.4 and 33.5 to 35 MB beside what was predicted without them.
        (2_708, 64, 64 * 4 * 22 * 64),
        (169_343, 64, 64 * 4 * 1_323 * 64),
        (600_000, 64, 64 * 4 * 2_112 * 64),
        # Too little for each thread; more columns than blocks of threads; an odd number of columns.
        (1_000, 64, 0),
        (4_096, 1 << 20, 0),
        (100_000, 3, 3 * 4 * 25 * 2),
    ],
)
def test_sums_of_columns_take_partial_sums(rows, columns, expected):
    assert column_sums_bytes(rows, columns, 4) == expected


def test_only_sums_over_the_first_dimensions_take_them():
    operation, x = torch.ops.aten.sum.dim_IntList, torch.empty(3_000, 2, 32, device="meta")
    assert memory_inside(operation, (x, [0]), {}) == [column_sums_bytes(3_000, 64, 4)]
    assert memory_inside(operation, (x, [0, 1]), {}) == [column_sums_bytes(6_000, 32, 4)]
    for dims in ([2], [-1], [0, 1, 2], [1], None):
        assert memory_inside(operation, (x, dims), {}) == [0]
    assert memory_inside(operation, (torch.empty(3_000, 0, device="meta"), [0]), {}) == [0]


def test_sorts_take_a_copy_of_keys_and_places_beside_what_they_return():
    x = torch.empty(1_000, dtype=torch.int32, device="meta")
    assert memory_inside(torch.ops.aten.sort.stable, (x,), {}) == [8_000, 12_000]
    with Allocations(on_device=True) as traced:
        kept = torch.sort(x, stable=True)
    taken = [event.bytes for event in traced.events]
    assert max(itertools.accumulate(taken)) == 12_000 + 20_000
    assert traced.now == sum(each.nbytes for each in kept) == 12_000


def test_nothing_is_measured_in_a_process_that_runs_share(monkeypatch):
    monkeypatch.setattr(libraries, "current_streams", object)

    def asked(device):
        raise AssertionError("the GPU was asked")

    monkeypatch.setattr(torch.cuda, "get_device_properties", asked)
    libraries.measure_libraries(torch.device("cuda"))
    monkeypatch.setattr(libraries, "current_streams", lambda: None)
    with pytest.raises(AssertionError, match="was asked"):
        libraries.measure_libraries(torch.device("cuda"))
