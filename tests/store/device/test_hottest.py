"""The rows that deserve a cache, against a full sort."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.device.tables import by_device_counts
from penstock.store.rows import by_counts

pytestmark = pytest.mark.gpu


@given(data=st.data())
def test_the_hottest_rows_are_those_a_stable_sort_finds(data, device):
    counts = np.array(data.draw(st.lists(st.integers(0, 9), max_size=40)), np.int32)
    rows = data.draw(st.integers(0, 50))
    expected = np.sort(np.argsort(-counts, kind="stable")[:rows])
    np.testing.assert_array_equal(by_counts(counts, rows), expected)
    found = by_device_counts(torch.from_numpy(counts).to(device), rows)
    assert found.device.type == device.type and found.dtype == torch.int64
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
