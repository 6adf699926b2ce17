"""Callbacks that come with Penstock, by the names that jobs give them."""

from penstock.errors import PenstockError, nearest
from penstock.plugins import has_plugin, plugins

CALLBACKS: dict[str, str] = {
    "tensorboard": "penstock.train.callbacks.tensorboard_log:TensorBoard",
    "mlflow": "penstock.train.callbacks.mlflow_log:MLflow",
    "wandb": "penstock.train.callbacks.wandb_log:WandB",
}
PLUGINS = "penstock.callbacks"
"""The group of entry points by which packages offer further ones."""


def callback_location(name: str) -> str:
    """Where the callback is that a job names: one of Penstock's, or FILE.py:NAME or PACKAGE.MODULE:NAME."""
    if ":" in name:
        return name
    if name not in CALLBACKS and has_plugin(PLUGINS, name):
        return plugins(PLUGINS)[name].value
    if name not in CALLBACKS:
        raise PenstockError(
            f"There is no callback {name!r}{nearest(name, CALLBACKS)} Callbacks of your own are FILE.py:NAME.",
            code="unknown-name",
        )
    return CALLBACKS[name]
