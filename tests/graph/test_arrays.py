"""`.npy` files as others read them."""

import numpy as np
import pytest

from penstock.graph.arrays import ArrayWriter, open_array, release_pages, write_array


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(0,), (5,), (4, 3), (0, 7), (2, 2, 2)])
def test_numpy_reads_what_we_write(tmp_path, dtype, shape):
    values = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    write_array(tmp_path / "a.npy", values)
    with ArrayWriter(tmp_path / "b.npy", dtype, shape[1:]) as writer:
        for row in values:
            writer.append(row[None])
    np.save(tmp_path / "c.npy", values)
    for name in "abc":
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), values)
        ours = open_array(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(ours, values)
        assert ours.dtype == values.dtype


def test_rows_of_another_width_are_refused(tmp_path):
    with pytest.raises(ValueError, match="do not fit"), ArrayWriter(tmp_path / "a.npy", np.int32, (3,)) as writer:
        writer.append(np.zeros((2, 4), np.int32))


def test_released_pages_come_back_from_the_file(tmp_path):
    write_array(tmp_path / "a.npy", np.arange(10_000))
    mapped = open_array(tmp_path / "a.npy")
    before = int(mapped.sum())
    release_pages(mapped)
    assert int(mapped.sum()) == before
