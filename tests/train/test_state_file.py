import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import PenstockError
from penstock.train.state_file import read_state, write_state
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


@settings(max_examples=30)
@given(st.integers(0, 2000))
def test_a_file_cut_short_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("cut") / "a.ckpt"
    small(path)
    data = path.read_bytes()
    path.write_bytes(data[: min(length, len(data) - 1)])
    with pytest.raises(PenstockError, match="is damaged"):
        read_state(path)


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(PenstockError, match="does not exist"):
        read_state(tmp_path / "none.ckpt")
    torch.save({"a": torch.zeros(2)}, tmp_path / "torch.ckpt")
    with pytest.raises(PenstockError, match="damaged"):
        read_state(tmp_path / "torch.ckpt")
    with pytest.raises(PenstockError):
        read_state(tmp_path)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.ckpt"
    state = small(path)
    with pytest.raises(PenstockError, match="set cannot be kept"):
        write_state(path, {"a": {1, 2}})
    assert_same_state(read_state(path), state)
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]
