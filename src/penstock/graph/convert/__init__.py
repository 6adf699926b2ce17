"""Graphs from other libraries' objects and files, and `load` (in `detect`), which recognises them.

`pyg` and `library_graphs` convert objects of PyG, DGL, NetworkX and SciPy; `ogb`, `npz` and `triple_files` read files.
Converters share `edges`, and check ids with `penstock.graph.ids`. Tables are not here: they need a description, see
`penstock.graph.tables`. Optional libraries are imported when used.
"""

from penstock.graph.convert.detect import load
from penstock.graph.convert.library_graphs import from_dgl, from_networkx, from_scipy
from penstock.graph.convert.npz import from_npz
from penstock.graph.convert.ogb import from_ogb
from penstock.graph.convert.pyg import from_pyg
from penstock.graph.convert.triple_files import from_triples

__all__ = ["from_dgl", "from_networkx", "from_npz", "from_ogb", "from_pyg", "from_scipy", "from_triples", "load"]
