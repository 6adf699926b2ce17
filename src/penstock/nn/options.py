"""What can be chosen about a model: fields of a job and flags of the command line."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem, or_plugin
from penstock.nn.layer_table import LAYERS, PLUGINS, layer_entry
from penstock.nn.order_costs import CostsByDevice, Order
from penstock.nn.scorer_table import SCORERS


def _listed(value: object) -> object:
    """On the command line orders of several layers are written transform,aggregate."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) and "," in value else value


if TYPE_CHECKING:
    ModelName = str
else:
    ModelName = Annotated[Literal[tuple(LAYERS)], or_plugin(PLUGINS), BeforeValidator(lambda value: _no_scorer(value))]


def _no_scorer(value: object) -> object:
    """Other libraries call a scorer of triples a model: say where it goes here."""
    if isinstance(value, str) and value in SCORERS and value not in LAYERS:
        raise ValueError(
            f"{value} is a scorer: set `scorer` to it, and `model` to embedding or an encoder such as rgcn"
        )
    return value


class ModelFields(StrictDocument):
    """Fields of a model of the zoo; its input and output widths come from the graph."""

    model: ModelName = Field("sage", description="kind of layer; mlp ignores the graph, embedding has no layers")
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
    one_hot: bool = Field(
        False,
        description="rgcn without features: the first layer's weights have a row for each vertex (docs/models.md)",
    )
    time_width: int = Field(
        0,
        ge=0,
        description="numbers that encode how long before its seed's time an edge was, for gatv2 and transformer; needs"
        " `time`",
    )
    embedding: int = Field(64, ge=1, description="width of learnable embeddings of node types without features")


class ModelInternals(StrictDocument):
    """What is decided about a model without asking for it."""

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


class ModelOptions(ModelFields, ModelInternals):
    """All that a model of the zoo is built by."""

    @property
    def needs_totals(self) -> bool:
        """Whether blocks must say how long whole lists are; of weighted edges they always do."""
        return bool(layer_entry(self.model).needs_totals(self))

    def of_layer(self, number: int, layers: int) -> Self:
        """The options of one of the model's layers: `order` is then its own."""
        if not isinstance(self.order, list):
            return self
        if len(self.order) != layers:
            raise PenstockError(
                f"order has {len(self.order)} entries for {layers} layers: give one for each layer, or a single one.",
                code="invalid-value",
            )
        return self.model_copy(update={"order": self.order[number]})

    @model_validator(mode="after")
    def _order_is_free(self) -> "ModelOptions":
        """Products can be exchanged where neighbours are added up."""
        if self.order == "auto":
            return self
        entry = layer_entry(self.model)
        if not (entry.linear(self) and entry.reads_neighbours):
            what = f"{self.model} with aggregate {self.aggregate}" if entry.linear(self) else self.model
            raise ValueError(f"order cannot be chosen for model {what}: leave out order")
        return self

    @model_validator(mode="after")
    def _decomposition_fits(self) -> "ModelOptions":
        chosen = "bases" if self.bases else "blocks" if self.blocks else None
        if chosen is None:
            return self
        if not layer_entry(self.model).decomposes:
            raise ValueError(f"{chosen} is for model rgcn, not for {self.model}: leave out {chosen}")
        if self.bases and self.blocks:
            raise ValueError("bases and blocks cannot be combined: leave out one of them")
        if self.blocks and self.hidden % self.blocks:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of blocks ({self.blocks})")
        return self

    @model_validator(mode="after")
    def _rows_of_one_hot(self) -> "ModelOptions":
        """The embedding of a vertex is then its rows of the first layer's matrices: its own, and one for each basis."""
        if not self.one_hot:
            return self
        if not layer_entry(self.model).decomposes or not self.bases:
            raise ValueError("one_hot is for model rgcn with bases: set bases, such as 30, or leave out one_hot")
        width = self.hidden * (1 + self.bases)
        if "embedding" in self.model_fields_set and self.embedding != width:
            raise ValueError(f"one_hot makes embeddings of hidden * (1 + bases) = {width}: leave out embedding")
        self.embedding = width
        return self

    @model_validator(mode="after")
    def _time_is_read(self) -> "ModelOptions":
        if self.time_width and not layer_entry(self.model).encodes_time:
            able = ", ".join(name for name in LAYERS if layer_entry(name).encodes_time)
            raise ValueError(f"model {self.model} reads no times of edges: leave out time_width, or use one of {able}")
        return self

    @model_validator(mode="after")
    def _heads_share_hidden(self) -> "ModelOptions":
        if self.hidden % self.heads and layer_entry(self.model).has_heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self


def model_options(**chosen: Any) -> ModelOptions:
    """Checked options, refused with a sentence."""
    try:
        return ModelOptions(**chosen)
    except ValidationError as error:
        raise PenstockError(f"The model cannot be built: {first_problem(error)}.", code="invalid-value") from None
