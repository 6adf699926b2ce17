"""Layers on blocks: `layer(block, x)` takes a row per source vertex and gives a row per destination vertex.

Destination rows are the first source rows. `sage`, `gcn`, `gat` (and v2), `gin`, and `gine` and `transformer`, which
read what edges carry, work on blocks; `rgcn`, `hgt` and `typed_gat` on typed blocks and tensors by node type, as does
`one_hot`, the first layer of rgcn without features; `dense` ignores the neighbours.
"""

from penstock.nn.layers.dense import DenseLayer, TypedDenseLayer
from penstock.nn.layers.gat import GATLayer
from penstock.nn.layers.gcn import GCNLayer
from penstock.nn.layers.gin import GINLayer
from penstock.nn.layers.gine import GINELayer
from penstock.nn.layers.hgt import HGTLayer
from penstock.nn.layers.one_hot import OneHotRGCNLayer
from penstock.nn.layers.rgcn import RGCNLayer
from penstock.nn.layers.sage import SAGELayer
from penstock.nn.layers.transformer import TransformerLayer
from penstock.nn.layers.typed_gat import TypedGATLayer

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
