"""Graphs from other libraries' objects and files: one file for each origin, and `load` that recognises them.

`edges` and `ids` are what converters share; `ogb` is a folder because OGB stores its sets in four ways. Tables are not
here: they need a description, see `penstock.graph.tables`. Optional libraries are imported when used.
"""

from penstock.graph.convert.detect import load
from penstock.graph.convert.library_graphs import from_dgl, from_networkx, from_scipy
from penstock.graph.convert.npz import from_npz
from penstock.graph.convert.ogb import from_ogb
from penstock.graph.convert.pyg import from_pyg
from penstock.graph.convert.triple_files import from_triples

__all__ = ["from_dgl", "from_networkx", "from_npz", "from_ogb", "from_pyg", "from_scipy", "from_triples", "load"]
