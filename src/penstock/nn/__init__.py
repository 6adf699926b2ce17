"""Models on blocks: aggregation, layers, a zoo, and any torch module.

`kernels`, `attention_kernels` and `threads` are the mechanism, `aggregate` and `attend` its differentiable face,
`derived` what is made of a block once, `order` the choice between aggregating and transforming first. `layers` stand
on those, `zoo` on the layers, `options` say what can be chosen. `adapter` runs modules that know nothing of blocks;
`scorers` turn rows of vertices into scores of pairs.
"""

from penstock.nn.adapter import Adapted, adapt
from penstock.nn.aggregate import aggregate
from penstock.nn.attend import attend, attend_jointly
from penstock.nn.layers import DenseLayer, GATLayer, GCNLayer, GINLayer, RGCNLayer, SAGELayer, TypedGATLayer
from penstock.nn.options import ModelOptions, model_options
from penstock.nn.scorers import DistMultScorer, DotScorer, EdgeClassifier, MLPScorer, build_scorer
from penstock.nn.zoo import GAT, GCN, GIN, MLP, RGCN, GATv2, GraphModel, GraphSAGE, TypedModel, build_model

__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "MLP",
    "RGCN",
    "Adapted",
    "DenseLayer",
    "DistMultScorer",
    "DotScorer",
    "EdgeClassifier",
    "GATLayer",
    "GATv2",
    "GCNLayer",
    "GINLayer",
    "GraphModel",
    "GraphSAGE",
    "MLPScorer",
    "ModelOptions",
    "RGCNLayer",
    "SAGELayer",
    "TypedGATLayer",
    "TypedModel",
    "adapt",
    "aggregate",
    "attend",
    "attend_jointly",
    "build_model",
    "build_scorer",
    "model_options",
]
