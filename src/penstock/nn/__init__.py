"""Models on blocks: aggregation, layers, a zoo, and any torch module.

`kernels` and `threads` are the mechanism on the host and `device` is that on a GPU, chosen by the type of the block;
`aggregation` (also of a first layer's prepared inputs), `attention` and `drop` are the differentiable interface of
both, `derived` caches what is made of a block, `order` chooses between aggregating and transforming first, `norm`
normalises batches that workers may share. `layers` use those, `zoo` uses the layers, and `options` are what can be
chosen. `adapter` runs modules that know nothing of blocks; `scorers` turn rows of vertices into scores of pairs.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.nn.adapter import Adapted, adapt
    from penstock.nn.aggregation import aggregate
    from penstock.nn.attention import attend, attend_jointly
    from penstock.nn.layer_table import ModelOptions, model_options
    from penstock.nn.layers import (
        DenseLayer,
        GATLayer,
        GCNLayer,
        GINELayer,
        GINLayer,
        HGTLayer,
        RGCNLayer,
        SAGELayer,
        TransformerLayer,
        TypedDenseLayer,
        TypedGATLayer,
    )
    from penstock.nn.scorers import (
        ComplExScorer,
        DistMultScorer,
        DotScorer,
        EdgeClassifier,
        MLPScorer,
        RotatEScorer,
        TransEScorer,
        build_scorer,
    )
    from penstock.nn.zoo import (
        GAT,
        GCN,
        GIN,
        GINE,
        HGT,
        MLP,
        RGCN,
        GATv2,
        GraphModel,
        GraphSAGE,
        GraphTransformer,
        TypedModel,
        build_model,
    )


__all__ = [
    "GAT",
    "GCN",
    "GIN",
    "GINE",
    "HGT",
    "MLP",
    "RGCN",
    "Adapted",
    "ComplExScorer",
    "DenseLayer",
    "DistMultScorer",
    "DotScorer",
    "EdgeClassifier",
    "GATLayer",
    "GATv2",
    "GCNLayer",
    "GINELayer",
    "GINLayer",
    "GraphModel",
    "GraphSAGE",
    "GraphTransformer",
    "HGTLayer",
    "MLPScorer",
    "ModelOptions",
    "RGCNLayer",
    "RotatEScorer",
    "SAGELayer",
    "TransEScorer",
    "TransformerLayer",
    "TypedDenseLayer",
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

# Imported on first use, so that reading the options (a job, the command line's help) does not wait for torch.
__getattr__, __dir__ = lazy_names(__name__)
