"""Stores over the parts of a partitioned graph: rows by new number, wherever they are.

`service` serves the parts that a process holds and `store` is the reader's side: it reads what is mapped in its own
process or kept in a cache, and requests the rest from the owners, or from `replicas` if these are faster. `requests`
is the form of requests and how rows are sent, rounded to the nearest (`narrow`) or at random (`stochastic_rounding`),
and `selected_columns` with which of their columns. `owned` keeps
learnable rows at their owner safe from kill -9, with the tables and the journal of `embedding_files`, and `remote` is
the worker's side of them. Nothing here knows where processes run: channels to owners are given.
"""

from penstock.store.parts.embedding_files import Push
from penstock.store.parts.owned import OwnedEmbedding, PushMissing, StepPast
from penstock.store.parts.remote import RemoteEmbedding
from penstock.store.parts.requests import Traffic
from penstock.store.parts.selected_columns import ColumnSelection
from penstock.store.parts.service import EmbeddingService, StoreService, own_embedding
from penstock.store.parts.stochastic_rounding import StochasticRounding
from penstock.store.parts.store import PartedRowSource, PartedStore

__all__ = [
    "ColumnSelection",
    "EmbeddingService",
    "OwnedEmbedding",
    "PartedRowSource",
    "PartedStore",
    "Push",
    "PushMissing",
    "RemoteEmbedding",
    "StepPast",
    "StochasticRounding",
    "StoreService",
    "Traffic",
    "own_embedding",
]
