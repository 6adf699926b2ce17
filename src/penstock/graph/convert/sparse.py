"""SciPy's sparse matrices and arrays: A[i, j] is the edge i -> j."""

from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph


def from_scipy(matrix: Any, x: Array | None = None, y: Array | None = None, name: str = "scipy") -> Graph:
    """A graph from an adjacency matrix, with features and labels if given.

    Every stored entry is an edge, zeros too; entries of one place are summed, as SciPy does. Values that are
    not all 1 become the edge field `weight` (float32). A matrix that is not square joins node type `row` to
    `column`.
    """
    if len(matrix.shape) != 2:
        raise PenstockError(
            f"A sparse array of shape {matrix.shape} is not an adjacency matrix: give one with two dimensions.",
            code="shape-mismatch",
        )
    if matrix.dtype.kind not in "biuf":
        raise PenstockError(
            f"The matrix holds {matrix.dtype}, which cannot be edge weights: convert it to float32.", code="wrong-type"
        )
    rows, columns = matrix.shape
    edges = _lists(matrix)
    given = {key: values for key, values in (("x", x), ("y", y)) if values is not None}
    if rows == columns:
        nodes = {"node": NodeSet(rows, given)}
        return Graph(nodes, {("node", "to", "node"): edges}, name, origin={"from": "SciPy"})
    if given:
        raise PenstockError(
            f"A {rows:,} x {columns:,} matrix has two node types, so {' and '.join(given)} cannot be placed:"
            ' set graph.nodes["row"].fields or graph.nodes["column"].fields.',
            code="unsupported-combination",
        )
    nodes = {"row": NodeSet(rows), "column": NodeSet(columns)}
    return Graph(nodes, {("row", "to", "column"): edges}, name, origin={"from": "SciPy"})


def _lists(matrix: Any) -> EdgeSet:
    """The columns of A are the in-neighbour lists, so SciPy's own conversion does the sorting."""
    if hasattr(matrix, "check_format"):
        try:
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise PenstockError(f"The matrix is not valid ({error}): build it again.", code="invalid-value") from None
    compressed = matrix.tocsc()
    if not compressed.has_canonical_format:
        # The matrix may be the caller's own, so it is sorted and summed in a copy.
        compressed = compressed.copy()
        compressed.sum_duplicates()
    fields = {}
    if not np.all(compressed.data == 1):
        fields["weight"] = compressed.data.astype(np.float32, copy=False)
    indices = compressed.indices.astype(index_dtype(matrix.shape[0]), copy=False)
    return EdgeSet(compressed.indptr.astype(np.int64, copy=False), indices, fields)
