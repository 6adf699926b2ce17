"""Checks of a graph's arrays: kernels use them as indices without checking bounds.

`check_graph` reads every array that a kernel indexes with once, before the first kernel sees it, and remembers what it
found: on the graph while it is open, and for large arrays in a record under the user's cache folder.
"""

from penstock.graph.integrity.graph import check_graph, check_order
from penstock.graph.integrity.scan import NonFinite, non_finite, require_finite, require_times

__all__ = ["NonFinite", "check_graph", "check_order", "non_finite", "require_finite", "require_times"]
