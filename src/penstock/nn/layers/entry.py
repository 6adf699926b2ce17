"""What a kind of layer declares: how it is built for graphs of one type and of several, and what it needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.first_rows import Aggregation
from penstock.nn.options import ModelOptions

Build = Callable[[ModelOptions, int, int, bool], nn.Module]
"""`build(options, width in, width out, is last)`: a layer on blocks."""
BuildTyped = Callable[[ModelOptions, int, int, Sequence[str], Sequence[EdgeType], bool], nn.Module]
"""`build_typed(options, width in, width out, node types, edge types, is last)`: a layer on typed blocks."""
Asks = Callable[[ModelOptions], bool]
SourceScale = Callable[[Array], Array]
"""What a row is multiplied by before it is added to others, by the total of its vertex's list in the relation that is
read; 1 where that is 0, as it is where the relation comes from another type."""


@dataclass(frozen=True)
class LayerEntry:
    """One kind of layer. A new one is a file with its module and its entry, and a line in `nn.layer_table.LAYERS`."""

    name: str
    build: Build | None = None
    """None: a graph of one type is taken as one with a single relation."""
    build_typed: BuildTyped | None = None
    """None: it is for one node type and one relation."""
    needs_totals: Asks = lambda options: False
    """Whether blocks must say how long whole lists are."""
    reads_in_place: Asks = lambda options: False
    """Whether it reads rows of a device's table where they lie, and rectifies its inputs on the way."""
    reads_neighbours: bool = True
    """Whether it looks at the graph at all."""
    linear: Asks = lambda options: options.aggregate != "max"
    """Whether what it aggregates is linear in the neighbours' rows."""
    aggregates: Callable[[ModelOptions], Aggregation | None] = lambda options: None
    """What a first layer aggregates of its inputs, where it can be given that in place of them."""
    transforms_first: Asks = lambda options: False
    """Whether a first layer may transform its inputs before it aggregates them."""
    makes_edge_rows: bool = False
    """Whether it computes a row for each edge of a block, whose number must then be known to the host."""
    source_scale: Callable[[ModelOptions], SourceScale | None] = lambda options: None
    """How it weighs neighbours' rows, where it reads a sum of them, as one row of a vertex without a list, like the
    rows themselves; None: it must read every row."""
    weighs_messages: Asks = lambda options: False
    """Whether it weighs what neighbours send by the blocks' weights, as the job field `edge_weight` wants it."""
    edge_features: Literal["none", "optional", "needed"] = "none"
    """Whether it reads what edges carry: `options.edge_width` numbers each."""
    encodes_time: bool = False
    """Whether it reads how old edges are, encoded in `options.time_width` numbers; for graphs of one relation."""
    has_heads: bool = False
    """Whether `hidden` is shared by `heads`."""
    decomposes: bool = False
    """Whether the weights of relations may be mixtures of `bases` or made of `blocks`, and `one_hot` is possible."""
