"""The job fields that name functions of the user's: the loss, further metrics and callbacks; and weights of classes."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, mapping_of_flag, split_commas


def _weights_of_flag(value: object) -> object:
    """What a flag says: balanced, numbers with commas, or a mapping."""
    if not isinstance(value, str) or value == "balanced":
        return value
    return mapping_of_flag(value) if value.lstrip().startswith("{") else split_commas(value)


ClassWeights = Literal["balanced"] | list[float] | dict[str | int, float]


class FunctionOptions(StrictDocument):
    """Code of your own, each FILE.py:NAME or PACKAGE.MODULE:NAME (docs/callbacks.md)."""

    loss: str | None = Field(
        None,
        description="called with outputs and labels in place of the task's loss; returns a number for each row. For"
        " regression mse (the default), mae or huber name losses too",
    )
    metrics: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        [], description="further metrics, each called with outputs and labels (NumPy arrays); returns a number"
    )
    callbacks: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        [], description="called after every epoch, and may end the run; or tensorboard, mlflow, wandb"
    )
    class_weights: Annotated[ClassWeights | None, BeforeValidator(_weights_of_flag)] = Field(
        None, description="how much a row's loss counts by its class: balanced, a number for each class, or a mapping"
    )
