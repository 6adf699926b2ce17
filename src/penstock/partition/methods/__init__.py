"""Partitioning methods by name. To add one, write a function that is a `Method` and add a line to `METHODS`.

`metis`, `hypergraph` and `kaminpar` call partitioners (the last two in processes of their own, see `child`); `stream`
calls METIS on a graph of clusters, which `clusters` finds; `one_pass` has the methods that need none.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.partition.problem import Method

METHODS: "Registry[Method]" = Registry(
    "partitioning method",
    "penstock.partitioners",
    {
        "random": "penstock.partition.methods.one_pass:assign_random",
        "chunk": "penstock.partition.methods.one_pass:assign_chunk",
        "metis": "penstock.partition.methods.metis:assign_metis",
        "hypergraph": "penstock.partition.methods.hypergraph:assign_hypergraph",
        "kaminpar": "penstock.partition.methods.kaminpar:assign_kaminpar",
        "stream": "penstock.partition.methods.stream:assign_stream",
    },
    Callable,
)
