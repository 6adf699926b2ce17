"""The kinds of layer, which models choose from by name, and where each one's entry is defined."""

from importlib import import_module
from typing import Any

from penstock.imports import load_plugin

LAYERS = {
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
}
"""For each kind of layer, the module and the name of its entry. Modules are imported when their layer is used."""
PLUGINS = "penstock.models"
"""The entry-point group by which packages add layers."""
WITHOUT_LAYERS = frozenset({"embedding"})
"""Models that compute nothing: a vertex's output is its own row."""


def layer_entry(name: str) -> Any:
    """The `nn.layers.entry.LayerEntry` of a kind of layer, which may be a plug-in's."""
    if name not in LAYERS:
        return load_plugin(PLUGINS, name, import_module("penstock.nn.layers.entry").LayerEntry)
    module, _, attribute = LAYERS[name].partition(":")
    return getattr(import_module(module), attribute)
