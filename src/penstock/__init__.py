"""Penstock: graph neural network training that is planned, reproducible and hard to kill."""

from penstock.errors import PenstockError
from penstock.graph import EdgeSet, Graph, NodeSet, StringIds
from penstock.version import __version__

__all__ = ["EdgeSet", "Graph", "NodeSet", "PenstockError", "StringIds", "__version__"]
