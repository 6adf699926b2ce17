"""What can be chosen about a model: fields of a job and flags of the command line."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument
from penstock.nn.operator_costs import CostsByDevice, Order


def _listed(value: object) -> object:
    """Split the orders of several layers, which the command line writes as transform,aggregate."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) and "," in value else value


ONE_HOT: Literal["one-hot"] = "one-hot"
"""The value of `embedding` by which vertices have rows of the first layer's weights."""


class LayerFields(StrictDocument):
    """Fields of a model of the zoo, as layers read them; `layer_table.ModelFields` knows which layers there are."""

    model: str = Field("sage", description="kind of layer; mlp ignores the graph, embedding has no layers")
    layers: int = Field(3, ge=1, description="number of layers, one for each fan-out")
    hidden: int = Field(256, ge=1, description="width between layers, all heads together")
    heads: int = Field(
        4,
        ge=1,
        description="attention heads of gat, gatv2, transformer and hgt; the last layer averages them, but for hgt",
    )
    aggregate: Literal["mean", "sum", "max"] = Field("mean", description="how sage and rgcn combine neighbours")
    dropout: float = Field(0.5, ge=0, lt=1, description="share of values dropped after every layer but the last")
    input_dropout: float = Field(0.0, ge=0, lt=1, description="share of the input's values dropped")
    attention_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of neighbours dropped in gat, gatv2, transformer and hgt"
    )
    norm: Literal["none", "batch", "layer"] = Field("none", description="normalisation after every layer but the last")
    activation: Literal["relu", "elu"] = Field("relu", description="activation after every layer but the last")
    residual: bool = Field(False, description="add each layer's input to its output")
    jump: Literal["none", "cat", "max"] = Field("none", description="jumping knowledge: join all layers' outputs")
    bases: int = Field(0, ge=0, description="matrices that rgcn's relations share; 0: one for each relation")
    blocks: int = Field(
        0, ge=0, description="blocks along the diagonal of the matrices of rgcn's relations; 0: whole matrices"
    )
    time_width: int = Field(
        0,
        ge=0,
        description="numbers that encode how long before its seed's time an edge was, for gatv2 and transformer; needs"
        " `time`",
    )
    embedding: Annotated[int, Field(ge=1)] | Literal["one-hot"] = Field(
        64,
        description="width of learnable embeddings of node types without features; one-hot: rgcn's first layer has a"
        " row of weights for each vertex (docs/models.md)",
    )

    @property
    def embedding_width(self) -> int:
        """Numbers of a learnable embedding: of one-hot input, a vertex's rows of the first layer's matrices, its own
        and one for each basis.
        """
        return width_of_embedding(self.embedding, self.hidden, self.bases)


def width_of_embedding(embedding: int | Literal["one-hot"], hidden: int, bases: int) -> int:
    """`LayerFields.embedding_width` of these fields, for those who have a job as a document."""
    return hidden * (1 + bases) if embedding == ONE_HOT else embedding


class ModelInternals(StrictDocument):
    """Settings of a model that are decided automatically."""

    order: Annotated[Order | list[Order], BeforeValidator(_listed)] = Field(
        "auto",
        description="aggregate neighbours before they are transformed, or behind; a list: for each layer; auto: the"
        " faster one, as predicted (docs/execution.md)",
    )
    order_costs: CostsByDevice = Field(
        {}, description="by device, the rates that `order: auto` predicts with; written when a run starts"
    )
    edge_width: int = Field(
        0, ge=0, description="numbers that an edge carries, for gatv2, gine and transformer; taken from `edge_features`"
    )


class LayerOptions(LayerFields, ModelInternals):
    """All options that a layer is built from."""
