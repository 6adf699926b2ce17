"""The kinds of layer, which models choose from by name, and where each one's entry is defined."""

from importlib import import_module
from typing import Any

from penstock.plugins import load_plugin

LAYERS = {
    "sage": "penstock.nn.layers.entries:SAGE",
    "gcn": "penstock.nn.layers.entries:GCN",
    "gat": "penstock.nn.layers.entries:GAT",
    "gatv2": "penstock.nn.layers.entries:GATV2",
    "gin": "penstock.nn.layers.entries:GIN",
    "gine": "penstock.nn.layers.entries:GINE",
    "transformer": "penstock.nn.layers.entries:TRANSFORMER",
    "rgcn": "penstock.nn.layers.entries:RGCN",
    "hgt": "penstock.nn.layers.entries:HGT",
    "mlp": "penstock.nn.layers.entries:MLP",
    "embedding": "penstock.nn.layers.entries:EMBEDDING",
}
"""For each kind of layer, the module and the name of its entry. Modules are imported when their layer is asked for."""
PLUGINS = "penstock.models"
"""The group of entry points by which packages offer further ones."""
WITHOUT_LAYERS = frozenset({"embedding"})
"""Models that compute nothing of their inputs: a vertex's output is its own row."""


def layer_entry(name: str) -> Any:
    """The `nn.layers.entry.LayerEntry` of a kind of layer, which may be a plug-in's."""
    if name not in LAYERS:
        return load_plugin(PLUGINS, name, import_module("penstock.nn.layers.entry").LayerEntry)
    module, _, attribute = LAYERS[name].partition(":")
    return getattr(import_module(module), attribute)
