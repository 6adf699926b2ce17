"""A model as Python users give it."""

from typing import Any

import torch

from penstock.errors import PenstockError


def checked_model(model: Any) -> torch.nn.Module | None:
    """The module that was given, or None where a name was, or nothing."""
    if model is None or isinstance(model, str):
        return None
    if isinstance(model, torch.nn.Module):
        return model
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise PenstockError(
            f"The model is the class {model.__name__}: give a module made of it, such as {model.__name__}(...).",
            code="wrong-type",
        )
    raise PenstockError(
        f"The model is of type {type(model).__name__}: give the name of a model, or a torch.nn.Module.",
        code="wrong-type",
    )
