"""The job fields that say what passes from batch to batch: their order, how they are drawn, and what is used again."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import AutoCount, StrictDocument, split_commas
from penstock.train.shuffling import SHUFFLINGS

if TYPE_CHECKING:
    ShuffleName = str
else:
    ShuffleName = Literal[tuple(SHUFFLINGS)]


def _listed(value: object) -> object:
    """On the command line fields are written first_layer,groups, and no fields `none`."""
    return [] if value == "none" else split_commas(value)


class BatchOptions(StrictDocument):
    """The order of batches, whether they are drawn in groups or used again, how old weights may be; what is timed."""

    shuffle: ShuffleName = Field(
        "always",
        description="whether each epoch has its own batches of seeds; never: those of the first epoch; adaptive: those"
        " of the first epoch until the elbow of the validation curve (docs/batches.md)",
    )
    reuse_batches: bool = Field(
        False,
        description="while seeds are not shuffled, use the neighbourhoods that the first epoch drew again; faster, and"
        " usually less accurate",
    )
    reuse_mb: int = Field(1024, ge=1, description="memory for batches that are used again; others are drawn again")
    staleness: int = Field(
        0, ge=0, le=64, description="compute the gradients of a batch on weights that are so many updates old"
    )
    groups: AutoCount = Field(
        1,
        description="batches that all processors draw together before they are trained on; 1: each beside the training"
        " of others; auto: eight for each processor, or as predicted where this machine was measured",
    )
    timed_choices: Annotated[
        list[Literal["feature_paths", "first_layer", "groups", "order"]], BeforeValidator(_listed)
    ] = Field(
        ["feature_paths", "first_layer", "groups"],
        description="fields that, where they are auto, are decided by timing some batches before a long run begins:"
        " feature_paths, first_layer, groups, order; none: predictions and rules decide (docs/execution.md)",
    )
