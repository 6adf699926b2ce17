"""Callbacks: objects that a run calls after each epoch, and that may end it. `loggers` has those that come with
Penstock.
"""

from typing import TYPE_CHECKING, Any

from penstock.registry import Registry, lazy_names

if TYPE_CHECKING:
    from penstock.train.callbacks.calls import Callbacks, EpochResult
    from penstock.train.callbacks.loggers import MLflow, TensorBoard, WandB

__all__ = ["CALLBACKS", "Callbacks", "EpochResult", "MLflow", "TensorBoard", "WandB"]

CALLBACKS: Registry[Any] = Registry(
    "callback",
    "penstock.callbacks",
    {
        "tensorboard": "penstock.train.callbacks.loggers:TensorBoard",
        "mlflow": "penstock.train.callbacks.loggers:MLflow",
        "wandb": "penstock.train.callbacks.loggers:WandB",
    },
)
"""Callbacks by the names that jobs give them; one of the user's own is FILE.py:NAME."""

__getattr__, __dir__ = lazy_names(__name__)
