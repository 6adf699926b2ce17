import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from penstock.store.rows import gather_rows
from penstock.store.source import LocalStore
from refusals import refused


@given(
    st.sampled_from([np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_]),
    st.lists(st.integers(0, 5), max_size=2),
    st.lists(st.integers(0, 9), max_size=30),
)
def test_gathering_is_indexing(dtype, row_shape, ids):
    table = np.arange(10 * int(np.prod(row_shape))).reshape(10, *row_shape).astype(dtype)
    found = gather_rows(table, np.array(ids, np.int32))
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found, table[np.array(ids, np.int64)])


def test_rows_outside_are_refused():
    table = np.zeros((3, 2), np.float32)
    for bad in (-1, 3):
        with refused("id-out-of-range 0..2"):
            gather_rows(table, np.array([0, bad]))
    with refused("shape-mismatch"):
        gather_rows(table, np.array([0]), np.zeros((2, 2), np.float32))


def test_a_store_pulls_columns_into_a_buffer_and_names_what_is_near():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    store = LocalStore.of_graph(Graph({"paper": NodeSet(4, {"x": x})}, {}))
    out = np.empty((2, 2), np.float32)
    assert store.source("paper/x").read(np.array([3, 1]), out, slice(0, 2)) is out
    np.testing.assert_array_equal(out, x[[3, 1], :2])
    with refused("field-missing paper/x"):
        store.source("paper/X")
    store.push("paper/x", np.array([2]), np.zeros((1, 3)))
    assert not x[2].any()
    x.flags.writeable = False
    with refused("not-permitted"):
        store.push("paper/x", np.array([2]), np.zeros((1, 3)))
