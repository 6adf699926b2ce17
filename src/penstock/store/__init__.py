"""Features and embeddings by vertex number, fields of edges by position: sources of rows, wherever they lie.

`source` is the interface of every source, with a graph's mapped fields and a source made of several; `embedding` keeps
learnable rows with a sparse optimiser (`initial_rows` are their initial values), `files` maps rows that are written,
and `rows` has the kernels that all of them use. `parts/` are stores over a partitioned graph, `device/` tables that a
GPU reads. Nothing here knows batches or models.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.store.source import ArraySource, LocalStore, RowSource, cached_source

__all__ = ["ArraySource", "LocalStore", "RowSource", "cached_source"]

__getattr__, __dir__ = lazy_names(__name__)
