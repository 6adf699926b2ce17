"""Features and embeddings by vertex number: `pull` rows, `push` values.

`local` reads a graph's mapped fields, `embedding` keeps learnable rows with a sparse optimiser beside them, `rows` has
the kernels both stand on. Nothing here knows batches or models.
"""

from penstock.store.embedding import EmbeddingTable
from penstock.store.local import LocalStore
from penstock.store.rows import gather_rows

__all__ = ["EmbeddingTable", "LocalStore", "gather_rows"]
