"""The kinds of layer by name, which models choose from, and the options of a model with one of them."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import first_problem, name_in
from penstock.nn.options import ONE_HOT, LayerFields, LayerOptions
from penstock.nn.scorer_table import SCORERS
from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.nn.layers.entry import LayerEntry

LAYERS: "Registry[LayerEntry]" = Registry(
    "model",
    "penstock.models",
    {
        "sage": "penstock.nn.layers.entry:SAGE",
        "gcn": "penstock.nn.layers.entry:GCN",
        "gat": "penstock.nn.layers.entry:GAT",
        "gatv2": "penstock.nn.layers.entry:GATV2",
        "gin": "penstock.nn.layers.entry:GIN",
        "gine": "penstock.nn.layers.entry:GINE",
        "transformer": "penstock.nn.layers.entry:TRANSFORMER",
        "rgcn": "penstock.nn.layers.entry:RGCN",
        "hgt": "penstock.nn.layers.entry:HGT",
        "mlp": "penstock.nn.layers.entry:MLP",
        "embedding": "penstock.nn.layers.entry:EMBEDDING",
    },
    "penstock.nn.layers.entry:LayerEntry",
)
WITHOUT_LAYERS = frozenset({"embedding"})
"""Models that compute nothing: a vertex's output is its own row."""

if TYPE_CHECKING:
    ModelName = str
else:
    ModelName = Annotated[name_in(LAYERS), BeforeValidator(lambda value: _no_scorer(value))]


def _no_scorer(value: object) -> object:
    """Refuse the name of a triple scorer, which other libraries call a model, with the field that it belongs to."""
    if isinstance(value, str) and value not in LAYERS and value in SCORERS:
        raise ValueError(
            f"{value} is a scorer: set `scorer` to it, and `model` to embedding or an encoder such as rgcn"
        )
    return value


class ModelFields(LayerFields):
    """Fields of a model of the zoo; its input and output widths come from the graph."""

    model: ModelName = Field("sage", description=LayerFields.model_fields["model"].description)


class ModelOptions(ModelFields, LayerOptions):
    """All options that a model of the zoo is built from."""

    def of_layer(self, number: int, layers: int) -> Self:
        """The options of one of the model's layers, with its own `order`."""
        if not isinstance(self.order, list):
            return self
        if len(self.order) != layers:
            raise PenstockError(
                f"order has {len(self.order)} entries for {layers} layers: give one for each layer, or a single one.",
                code="invalid-value",
            )
        return self.model_copy(update={"order": self.order[number]})

    @property
    def needs_totals(self) -> bool:
        """Whether blocks must hold the lengths of whole lists; with weighted edges they always do."""
        return bool(LAYERS[self.model].needs_totals(self))

    @model_validator(mode="after")
    def _order_is_free(self) -> "ModelOptions":
        """Refuse a choice of `order` for layers that do not sum their neighbours, whose products
        cannot be exchanged.
        """
        if self.order == "auto":
            return self
        entry = LAYERS[self.model]
        if not (entry.linear(self) and entry.reads_neighbours):
            what = f"{self.model} with aggregate {self.aggregate}" if entry.linear(self) else self.model
            raise ValueError(f"order cannot be chosen for model {what}: leave out order")
        return self

    @model_validator(mode="after")
    def _decomposition_fits(self) -> "ModelOptions":
        chosen = "bases" if self.bases else "blocks" if self.blocks else None
        if chosen is None:
            return self
        if not LAYERS[self.model].decomposes:
            raise ValueError(f"{chosen} is for model rgcn, not for {self.model}: leave out {chosen}")
        if self.bases and self.blocks:
            raise ValueError("bases and blocks cannot be combined: leave out one of them")
        if self.blocks and self.hidden % self.blocks:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of blocks ({self.blocks})")
        return self

    @model_validator(mode="after")
    def _one_hot_fits(self) -> "ModelOptions":
        if self.embedding == ONE_HOT and not (LAYERS[self.model].decomposes and self.bases):
            raise ValueError("embedding one-hot is for model rgcn with bases: set bases, such as 30, or give a width")
        return self

    @model_validator(mode="after")
    def _time_is_read(self) -> "ModelOptions":
        if self.time_width and not LAYERS[self.model].encodes_time:
            able = ", ".join(name for name in LAYERS if LAYERS[name].encodes_time)
            raise ValueError(f"model {self.model} reads no times of edges: leave out time_width, or use one of {able}")
        return self

    @model_validator(mode="after")
    def _heads_share_hidden(self) -> "ModelOptions":
        if self.hidden % self.heads and LAYERS[self.model].has_heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self


def model_options(**chosen: Any) -> ModelOptions:
    """Validated options of a model; an error in one sentence where they are invalid."""
    try:
        return ModelOptions(**chosen)
    except ValidationError as error:
        raise PenstockError(f"The model cannot be built: {first_problem(error)}.", code="invalid-value") from None
