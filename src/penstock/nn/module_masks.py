"""Edge masks in modules that know nothing of blocks: through PyG's own layers, or an argument `edge_weight`."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType


def call_masked(
    module: nn.Module,
    x: Any,
    edges: Any,
    masks: Tensor | dict[EdgeType, Tensor] | None,
    carried: Mapping[str, Any] | None = None,
) -> Any:
    """What the module returns for x and edges, whose messages are multiplied by their masks where there are any.

    `carried` are further arguments by name: what the edges carry.
    """
    more = dict(carried or {})
    if masks is None:
        return module(x, edges, **more)
    if layers := _message_passing(module):
        with _without_masks(layers):
            return _in_pyg_layers(module, x, edges, masks, more)
    if not isinstance(masks, dict) and "edge_weight" in inspect.signature(module.forward).parameters:
        return module(x, edges, **{**more, "edge_weight": masks * more.get("edge_weight", 1)})
    raise PenstockError(
        f"Edges of the module {type(module).__name__} cannot be masked, because it has no layer of PyG and its forward"
        " takes no `edge_weight`: build it of PyG's MessagePassing layers, or let forward(x, edge_index,"
        " edge_weight=None) multiply messages by their weights.",
        code="unsupported-combination",
    )


def _message_passing(module: nn.Module) -> list[Any]:
    """The module's PyG layers. A module that has any has imported PyG."""
    pyg = sys.modules.get("torch_geometric.nn")
    return [] if pyg is None else [part for part in module.modules() if isinstance(part, pyg.MessagePassing)]


@contextmanager
def _without_masks(layers: list[Any]) -> Iterator[None]:
    """Within it, PyG's layers have nothing of another explainer; afterwards they have it again.

    PyG's Explainer leaves the mask's name among a layer's parameters. PyG then copies any mask into a new parameter,
    through which no gradient comes back.
    """
    if all(layer.explain is False for layer in layers):
        raise PenstockError(
            "No edge can be masked, because `explain` of every PyG layer is False: set it to None.",
            code="unsupported-combination",
        )
    kept = []
    for layer in layers:
        told = layer.explain
        values = {name: vars(layer).pop(name) for name in _STATE if name in vars(layer)}
        parameters = {name: layer._parameters.pop(name) for name in _STATE if name in layer._parameters}
        kept.append((layer, told, values, parameters))
        layer.explain = False if told is False else None
    try:
        yield
    finally:
        for layer, told, values, parameters in kept:
            for name in _STATE:
                vars(layer).pop(name, None)
            vars(layer).update(values)
            layer._parameters.update(parameters)
            layer.explain = told


_STATE = ("_edge_mask", "_loop_mask", "_apply_sigmoid")
"""What PyG keeps of an explanation in its layers, beside `explain`."""


def _in_pyg_layers(
    module: nn.Module, x: Any, edges: Any, masks: Tensor | dict[EdgeType, Tensor], more: dict[str, Any]
) -> Any:
    from torch_geometric.explain.algorithm.utils import clear_masks, set_hetero_masks, set_masks

    try:
        if isinstance(masks, dict):
            set_hetero_masks(module, masks, edges, apply_sigmoid=False)
        else:
            set_masks(module, masks, edges, apply_sigmoid=False)
        return module(x, edges, **more)
    finally:
        clear_masks(module)
