"""Penstock: graph neural network training that is planned, reproducible and hard to kill."""

from penstock.errors import PenstockError
from penstock.graph import EdgeSet, Graph, NodeSet, StringIds
from penstock.graph.convert import load
from penstock.partition import Cut, Partition, cut, open_partition, stitch
from penstock.version import __version__

__all__ = [
    "Cut",
    "EdgeSet",
    "Graph",
    "NodeSet",
    "Partition",
    "PenstockError",
    "StringIds",
    "__version__",
    "cut",
    "load",
    "open_partition",
    "stitch",
]
