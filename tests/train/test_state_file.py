import io
import json
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as npy

from penstock import PenstockError
from penstock.graph.arrays import read_member
from penstock.train.run_files.checkpoints import DamagedState, read_state, write_state
from refusals import refused
from training_graphs import assert_same_state, same_state

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ARRAYS = st.integers(0, 99).map(lambda seed: np.random.default_rng(seed).random((seed % 3, 2)).astype(np.float32))
TENSORS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]).map(
    lambda dtype: torch.arange(6).reshape(2, 3).to(dtype)
)
STATES = st.dictionaries(
    st.text(max_size=5) | st.integers(),
    st.recursive(PLAIN | ARRAYS | TENSORS, lambda inner: st.lists(inner, max_size=3), max_leaves=6),
    max_size=4,
)


@given(STATES)
def test_what_is_written_is_read(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("state") / "a.ckpt"
    write_state(path, state)
    assert_same_state(read_state(path), state)


def small(path):
    state = {"learned": {"w": torch.arange(6.0).reshape(2, 3)}, 3: [1, 2.5, None, "ü"], "rows": np.arange(4)}
    write_state(path, state)
    return state


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "a.ckpt"
    state = small(path)
    data = path.read_bytes()
    noticed = 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            assert same_state(read_state(path), state), place
        except PenstockError as error:
            noticed += 1
            assert str(path) in str(error)
    assert noticed > len(data) // 2


@given(st.integers(0, 2000))
def test_a_file_cut_short_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("cut") / "a.ckpt"
    small(path)
    data = path.read_bytes()
    path.write_bytes(data[: min(length, len(data) - 1)])
    with refused("damaged-file"):
        read_state(path)


def test_files_that_are_something_else(tmp_path):
    with refused("damaged-file"):
        read_state(tmp_path / "none.ckpt")
    torch.save({"a": torch.zeros(2)}, tmp_path / "torch.ckpt")
    with refused("damaged-file"):
        read_state(tmp_path / "torch.ckpt")
    with pytest.raises(PenstockError):
        read_state(tmp_path)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.ckpt"
    state = small(path)
    with refused("unsupported-combination"):
        write_state(path, {"a": {1, 2}})
    assert_same_state(read_state(path), state)
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]


def forged(path, compression=zipfile.ZIP_STORED, change=lambda name, data: data):
    """The same file packed anew, its members changed; checksums fit what is packed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, change(name, data))


def with_shape(shape):
    """Array members that say they are of another shape than they are."""

    def change(name, data):
        if not name.startswith("t"):
            return data
        header = io.BytesIO()
        npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return header.getvalue() + np.arange(6, dtype=np.float32).tobytes()

    return change


def test_a_compressed_file_is_refused(tmp_path):
    path = tmp_path / "a.ckpt"
    write_state(path, {"zeros": np.zeros(100_000)})
    forged(path)
    assert read_state(path)["zeros"].shape == (100_000,)
    forged(path, zipfile.ZIP_DEFLATED)
    with refused("damaged-file"):
        read_state(path)


@pytest.mark.parametrize("shape", [(5,), (7,), (1 << 44,), (1 << 40, 1 << 40), (), (0,)], ids=str)
def test_an_array_of_another_length_than_its_shape_is_refused(shape, tmp_path):
    path = tmp_path / "a.ckpt"
    state = small(path)
    forged(path, change=with_shape((2, 3)))
    assert_same_state(read_state(path), state)
    forged(path, change=with_shape(shape))
    with refused("damaged-file"):
        read_state(path)


def test_an_array_is_named_once(tmp_path):
    path = tmp_path / "a.ckpt"
    small(path)

    def repeated(name, data):
        if name != "state.json":
            return data
        return json.dumps({**json.loads(data), "state": {"$items": [[k, {"$array": "a1"}] for k in range(1000)]}})

    forged(path, change=repeated)
    with refused("damaged-file"):
        read_state(path)


def test_shared_tensors_are_kept_apart(tmp_path):
    path, shared = tmp_path / "a.ckpt", torch.arange(3.0)
    write_state(path, {"a": shared, "b": shared})
    assert_same_state(read_state(path), {"a": shared, "b": shared})


def test_whatever_a_byte_of_a_header_becomes(tmp_path):
    """NumPy evaluates headers as Python: a quote, a bracket or a zero byte there raises whatever a parser can."""
    path = tmp_path / "a.ckpt"
    # Too large for its checksum to be compared before the header is looked at.
    state = {"w": torch.arange(6000.0).reshape(2, 3000), "rows": np.arange(4)}
    write_state(path, state)
    data = path.read_bytes()
    headers = [place for place in range(len(data)) if data[place:].startswith(npy.MAGIC_PREFIX)]
    noticed = 0
    for place in (place for header in headers for place in range(header, header + 80)):
        for byte in {0, 10, 39, 40, 44, 91, 92, 123, 233, data[place] ^ 16} - {data[place]}:
            path.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
            with refused("damaged-file a.ckpt", DamagedState):
                read_state(path)
            noticed += 1
    assert len(headers) == 2 and noticed > 1000
    path.write_bytes(data)
    assert_same_state(read_state(path), state)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, nan), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3), }",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f3', 'fortran_order': False, 'shape': (2, 4), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }",
        "{'descr': '<S99999999999999999999', 'fortran_order': False, 'shape': (2, 3), }",
        "(" * 9000,
        "{'descr': '",
        "\x00\x00",
        "",
    ],
    ids=range(15),
)
def test_headers_that_fit_their_checksum(text, tmp_path):
    path = tmp_path / "a.ckpt"
    small(path)

    def change(name, data):
        header = npy.magic(1, 0) + len(text).to_bytes(2, "little") + text.encode()
        return header + np.arange(6, dtype=np.float32).tobytes() if name.startswith("t") else data

    forged(path, change=change)
    with refused("damaged-file a.ckpt", DamagedState):
        read_state(path)


@pytest.mark.parametrize("array", [np.float32(3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros(0, "U0")])
def test_arrays_of_every_order(array, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("a.npy", "w") as member:
        npy.write_array(member, np.asanyarray(array))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        found = read_member(archive, archive.infolist()[0])
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype and found.flags.f_contiguous == np.asanyarray(array).flags.f_contiguous
