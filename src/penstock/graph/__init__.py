"""Graphs: what they are, how they live on disk, where they come from.

`graph` and `folder` are the core; `tables` builds graphs from users' tables, `convert` from other libraries' objects
and files, `generate` from recipes. Nothing here knows about partitions, models or training.
"""

from penstock.graph.graph import EdgeSet, Graph, NodeSet
from penstock.graph.ids import StringIds
from penstock.graph.schema import EdgeType

__all__ = ["EdgeSet", "EdgeType", "Graph", "NodeSet", "StringIds"]
