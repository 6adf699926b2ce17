"""Callbacks: objects that a run calls after each epoch, and that may end it. `loggers` has those that come with
Penstock.
"""

from typing import TYPE_CHECKING

from penstock.imports import lazy_names

if TYPE_CHECKING:
    from penstock.train.callbacks.calls import Callbacks, EpochResult
    from penstock.train.callbacks.loggers import MLflow, TensorBoard, WandB

__all__ = ["Callbacks", "EpochResult", "MLflow", "TensorBoard", "WandB"]

__getattr__ = lazy_names(
    __name__,
    {
        "penstock.train.callbacks.calls": (
            "Callbacks",
            "EpochResult",
        ),
        "penstock.train.callbacks.loggers": (
            "MLflow",
            "TensorBoard",
            "WandB",
        ),
    },
)
