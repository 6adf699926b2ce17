"""Models over the layers. `model` and `typed` are the two shapes, `named` the constructors under their usual names.

A model is `prepare` (per vertex), `layer(i, block, x)` and `join`, none of which looks beyond its arguments: training
runs them on sampled blocks, exact inference on whole neighbourhoods, chunk by chunk.
"""

from penstock.nn.zoo.model import EmbeddingModel, GraphModel
from penstock.nn.zoo.named import GAT, GCN, GIN, GINE, HGT, MLP, RGCN, GATv2, GraphSAGE, GraphTransformer, build_model
from penstock.nn.zoo.typed import TypedModel

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GINE",
    "HGT",
    "MLP",
    "RGCN",
    "ZOO",
    "EmbeddingModel",
    "GATv2",
    "GraphModel",
    "GraphSAGE",
    "GraphTransformer",
    "TypedModel",
    "build_model",
]

ZOO = frozenset(
    {GAT, GCN, GIN, GINE, HGT, MLP, RGCN, EmbeddingModel, GATv2, GraphModel, GraphSAGE, GraphTransformer, TypedModel}
)
"""The models' classes. They draw by keys of batches, and nothing from torch's generators."""
