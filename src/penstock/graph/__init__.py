"""Graphs: what they are, how they are stored on disk, where they come from.

`data` is what a graph holds, `folder` its layout on disk (`schema` is its document) and `Graph`, which joins the two.
`tables/` builds graphs from users' tables, `convert/` from other libraries' objects and files, `generate/` from
recipes. `integrity` checks what kernels rely on and `facts` remembers it; `inspect` looks for what will hurt training.
Everything above uses `arrays`, `documents` and `files` for files, and `hashing` for random choices. Nothing here knows
about partitions, models or training.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.graph.data import EdgeSet, NodeSet
    from penstock.graph.folder import Graph
    from penstock.graph.ids import StringIds
    from penstock.graph.schema import EdgeType

__all__ = ["EdgeSet", "EdgeType", "Graph", "NodeSet", "StringIds"]

# Imported on first use, so that reading a document or a command's help does not load kernels.
__getattr__, __dir__ = lazy_names(__name__)
