"""Partitioning methods by name. To add one, write a function that is a `Method` and add a line to `METHODS`.

`metis` and `hypergraph` call partitioners (Mt-KaHyPar runs in a process of its own, `mtkahypar_process`); `one_pass`
has the methods that need none.
"""

import difflib

from penstock.errors import PenstockError
from penstock.imports import has_plugin, load_plugin
from penstock.partition.methods.hypergraph import assign_hypergraph
from penstock.partition.methods.metis import assign_metis
from penstock.partition.methods.one_pass import assign_chunk, assign_random, assign_stream
from penstock.partition.problem import Method

METHODS: dict[str, Method] = {
    "random": assign_random,
    "chunk": assign_chunk,
    "metis": assign_metis,
    "hypergraph": assign_hypergraph,
    "stream": assign_stream,
}
PLUGINS = "penstock.partitioners"
"""The entry-point group by which packages add methods."""


def method_named(name: str) -> Method:
    """The method of that name, which may be a plug-in's; for an unknown name the error suggests the nearest."""
    if name in METHODS:
        return METHODS[name]
    if has_plugin(PLUGINS, name):
        plugin: Method = load_plugin(PLUGINS, name)
        return plugin
    near = difflib.get_close_matches(name, METHODS, 1, 0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(METHODS)}."
    raise PenstockError(f"There is no partitioning method {name!r}: {hint}", code="unknown-name")
