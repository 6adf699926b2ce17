"""`load`: recognises the kind of source and calls its converter."""

import difflib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.convert.library_graphs import from_dgl, from_networkx, from_scipy
from penstock.graph.convert.npz import from_npz
from penstock.graph.convert.ogb import from_ogb, is_ogb_folder
from penstock.graph.convert.pyg import from_pyg
from penstock.graph.convert.triple_files import from_triples, is_triple_file, is_triple_folder
from penstock.graph.folder import Graph
from penstock.graph.object_folders import is_remote, local_copy

_UNDERSTOOD = (
    "a graph folder, an OGB folder, an .npz archive, files of triples, the name of a data set, a PyG Data or"
    " HeteroData, a DGLGraph, a SciPy sparse matrix or a NetworkX graph"
)

# The package a type (or one of its bases) comes from, and a method that only its graphs have.
_LIBRARIES: dict[str, tuple[str, Callable[..., Graph]]] = {
    "torch_geometric": ("edge_attrs", from_pyg),
    "dgl": ("canonical_etypes", from_dgl),
    "scipy": ("tocsc", from_scipy),
    "networkx": ("adjacency", from_networkx),
}


def load(source: Any, *, unchecked: bool = False, **options: Any) -> Graph:
    """The graph behind a path, a data set's name or another library's object; a `Graph` is returned unchanged.

    Options go to the converter: `split` (PyG, DGL, .npz), `inverse` and `scheme` (OGB), `x` and `y` (SciPy). Arrays of
    the graph are validated before the first kernel reads them; `unchecked` ones are not, and a wrong number in them may
    crash the process.
    """
    graph = _recognised(source, options)
    if unchecked:
        graph.trust()
    return graph


def _recognised(source: Any, options: dict[str, Any]) -> Graph:
    if isinstance(source, (str, os.PathLike)):
        return _from_path(os.fspath(source), options)
    if isinstance(source, Graph):
        return _convert(lambda graph: graph, source, options)
    for base in type(source).__mro__:
        library = base.__module__.partition(".")[0]
        if library in _LIBRARIES and hasattr(source, _LIBRARIES[library][0]):
            return _convert(_LIBRARIES[library][1], source, options)
    raise PenstockError(
        f"{_kind_of(source)} is not a graph that Penstock can load: {_remedy(source)}.",
        code="wrong-type",
    )


def _from_path(given: str, options: dict[str, Any]) -> Graph:
    path = local_copy(given) if is_remote(given) else Path(given).expanduser()
    if path.is_dir():
        return _from_folder(path, options)
    if path.is_file():
        return _from_file(path, options)
    return _convert(_from_name, given, options)


def _from_folder(path: Path, options: dict[str, Any]) -> Graph:
    if (path / "graph.json").is_file():
        return _convert(Graph.open, path, options)
    if (path / "partition.json").is_file():
        raise PenstockError(
            f"{path} is a partition, not a graph: open it with penstock.partition.open_partition,"
            " or join its parts with penstock.partition.stitch.",
            code="wrong-file",
        )
    if is_ogb_folder(path):
        return _convert(from_ogb, path, options)
    if is_triple_folder(path):
        return _convert(from_triples, path, options)
    raise PenstockError(
        f"{path} is neither a graph folder (no graph.json) nor an OGB folder (no raw/ files) nor one of triples"
        " (no train.tsv or train.txt): check the path.",
        code="graph-not-found",
    )


def _from_file(path: Path, options: dict[str, Any]) -> Graph:
    if path.suffix == ".npz":
        return _convert(from_npz, path, options)
    if is_triple_file(path):
        return _convert(from_triples, path, options)
    if path.suffix in (".yaml", ".yml"):
        raise PenstockError(
            f"{path} describes tables: make a graph of them with `penstock data import {path} --out FOLDER`.",
            code="wrong-file",
        )
    if path.suffix in (".pt", ".pth", ".pkl", ".pickle"):
        raise PenstockError(
            f"{path} may hold code, which Penstock does not run: read it yourself, for example with torch.load, and"
            " give the object to ps.load.",
            code="wrong-file",
        )
    raise PenstockError(
        f"{path} is not a graph that Penstock can load: give {_UNDERSTOOD}; tables need a spec and `penstock data"
        " import`.",
        code="wrong-file",
    )


def _from_name(name: str) -> Graph:
    from penstock.graph.generate import DATASETS, make_cached

    if name in DATASETS:
        return make_cached(name)
    near = difflib.get_close_matches(name, list(DATASETS), n=1)
    hint = f"did you mean the data set {near[0]!r}?" if near else f"data sets are {', '.join(DATASETS)}."
    raise PenstockError(
        f"{name!r} is neither a path that exists nor the name of a data set: {hint}", code="graph-not-found"
    )


def _convert(converter: Callable[..., Graph], source: Any, options: dict[str, Any]) -> Graph:
    """Call a converter after checking its options, so that a misspelt one is reported clearly."""
    known = list(inspect.signature(converter).parameters)[1:]
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise PenstockError(f"Option {option!r} does not apply to this source: {takes}.", code="unknown-name")
    return converter(source, **options)


def _remedy(source: Any) -> str:
    """What to give instead of an object that is not a graph."""
    if isinstance(source, list | tuple) or any(base.__name__ == "Dataset" for base in type(source).__mro__):
        return f"give one graph of it, such as dataset[0]; Penstock loads {_UNDERSTOOD}"
    if isinstance(source, dict) or hasattr(source, "dtype"):
        return f"make a PyG Data of your arrays, Data(x=..., edge_index=...); Penstock loads {_UNDERSTOOD}"
    return f"give {_UNDERSTOOD}"


def _kind_of(source: Any) -> str:
    """The kind of an object, as the beginning of a sentence."""
    kind = type(source)
    if source is None:
        return "None"
    return f"A {kind.__name__}" if kind.__module__ == "builtins" else f"A {kind.__module__}.{kind.__name__}"
