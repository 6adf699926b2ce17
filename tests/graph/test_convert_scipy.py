"""SciPy's sparse matrices: A[i, j] is the edge i -> j."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from penstock.graph.convert import from_scipy
from refusals import refused

FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(FORMATS),
    as_array=st.booleans(),
)
def test_every_entry_is_an_edge(rows, columns, seed, kind, as_array):
    dense = np.random.default_rng(seed).integers(0, 3, (rows, columns)).astype(np.float64)
    matrix = (sparse.coo_array if as_array else sparse.coo_matrix)(dense).asformat(kind)
    graph = from_scipy(matrix)
    (edge_type,) = graph.edge_types
    edges = graph.edges[edge_type]
    weights = edges.fields.get("weight", np.ones(edges.count))
    again = np.zeros((rows, columns))
    np.add.at(again, tuple(edges.edge_index()), weights)
    np.testing.assert_array_equal(again, dense)
    starts = set(edges.indptr.tolist())
    ascending = [k in starts or edges.indices[k] > edges.indices[k - 1] for k in range(1, edges.count)]
    assert all(ascending)
    assert edge_type == (("node", "to", "node") if rows == columns else ("row", "to", "column"))
    # Blocks store zeros too.
    assert ("weight" in edges.fields) == bool((matrix.tocsc().data != 1).any())


def test_weights_are_float32_and_ones_are_no_weights():
    weighted = from_scipy(sparse.csr_array(np.array([[0, 0.5], [2, 0]])))
    assert weighted.edges["node", "to", "node"].fields["weight"].dtype == np.float32
    assert from_scipy(sparse.csr_array(np.array([[False, True], [True, False]]))).num_edges == 2
    assert from_scipy(sparse.csr_array(np.eye(2))).edges["node", "to", "node"].fields == {}


def test_the_matrix_is_left_alone():
    unsorted = sparse.csc_array((np.array([3.0, 1.0]), np.array([1, 0]), np.array([0, 2, 2])), shape=(2, 2))
    graph = from_scipy(unsorted)
    assert graph.indices.tolist() == [0, 1]
    assert graph.edges["node", "to", "node"].fields["weight"].tolist() == [1, 3]
    assert unsorted.indices.tolist() == [1, 0]


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_array, sparse.csr_matrix])
def test_entries_of_one_place_are_summed(kind):
    twice = kind((np.array([3.0, 1.0, 2.0]), np.array([1, 0, 1]), np.array([0, 3, 3])), shape=(2, 2))
    edges = from_scipy(twice).edges["node", "to", "node"]
    assert sorted(edges.fields["weight"].tolist()) == [1, 5] and edges.count == 2
    assert twice.nnz == 3 and twice.indices.tolist() == [1, 0, 1] and twice.data.tolist() == [3, 1, 2]


def test_features_and_labels():
    graph = from_scipy(sparse.eye_array(3, format="csr"), x=np.ones((3, 2)), y=np.arange(3), name="mine")
    assert graph.x.shape == (3, 2) and graph.y.tolist() == [0, 1, 2] and graph.name == "mine"
    with refused("shape-mismatch x 4 3"):
        from_scipy(sparse.eye_array(3), x=np.ones((4, 2)))
    with refused("unsupported-combination 2 3"):
        from_scipy(sparse.csr_array((2, 3)), y=np.arange(2))


def test_bad_matrices_are_sentences():
    with refused("wrong-type complex128"):
        from_scipy(sparse.csr_array(np.eye(2) * 1j))
    beyond = sparse.csr_array(np.eye(2))
    beyond.indices[0] = 9
    with refused("invalid-value"):
        from_scipy(beyond)
    with refused("shape-mismatch 3"):
        from_scipy(sparse.coo_array(np.array([0, 1, 2])))
