"""A graph that a user gives, opened."""

from typing import Any

from penstock.graph.convert import load
from penstock.graph.graph import Graph


def opened(graph: Any) -> Graph:
    """A graph as it is, and anything else that `ps.load` recognises as a graph."""
    return graph if isinstance(graph, Graph) else load(graph)
