"""Layers on blocks: `layer(block, x)` takes a row per source vertex and returns a row per destination vertex.

Destination rows are the first source rows. `convolutions` (SAGE, GCN, GIN and GINE) and `attention` (GAT, GATv2 and the
transformer) work on blocks; `rgcn`, `hgt` and the typed layers of `attention` on typed blocks and tensors by node type.
The dense layers of `convolutions` ignore the neighbours. `entry` is what each kind of layer declares.
"""

from penstock.nn.layers.attention import GATLayer, TransformerLayer, TypedGATLayer
from penstock.nn.layers.convolutions import DenseLayer, GCNLayer, GINELayer, GINLayer, SAGELayer, TypedDenseLayer
from penstock.nn.layers.hgt import HGTLayer
from penstock.nn.layers.rgcn import OneHotRGCNLayer, RGCNLayer

__all__ = [
    "DenseLayer",
    "GATLayer",
    "GCNLayer",
    "GINELayer",
    "GINLayer",
    "HGTLayer",
    "OneHotRGCNLayer",
    "RGCNLayer",
    "SAGELayer",
    "TransformerLayer",
    "TypedDenseLayer",
    "TypedGATLayer",
]
