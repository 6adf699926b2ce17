"""Penstock: graph neural network training that is planned, reproducible and hard to kill."""

import os
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.cache_folders import choose_triton_cache
from penstock.errors import PenstockError
from penstock.registry import lazy_names, on_call
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock import coflow, nn, sampling
    from penstock.api import Run, explain, infer, loader, memory, train
    from penstock.graph import EdgeSet, Graph, NodeSet, StringIds
    from penstock.graph.convert import load
    from penstock.partition import Cut, Partition, cut, open_partition, stitch
    from penstock.service import Queue
    from penstock.train import callbacks

__all__ = [
    "Cut",
    "EdgeSet",
    "Graph",
    "NodeSet",
    "Partition",
    "PenstockError",
    "Queue",
    "Run",
    "StringIds",
    "__version__",
    "callbacks",
    "coflow",
    "cut",
    "explain",
    "infer",
    "load",
    "loader",
    "memory",
    "nn",
    "open_partition",
    "sampling",
    "stitch",
    "train",
]

# Set before anything imports Triton: a command, a task of a cluster, or a program.
choose_triton_cache()
# Set before torch computes: on ARM, oneDNN would otherwise write a file for the profiler perf into the temporary
# folder, for every process that trains, and never remove it.
os.environ.setdefault("ONEDNN_JIT_PROFILE", "0")

# Looked up on first use, so that `import penstock` (and the command line's start) does not wait for Numba.
_PACKAGES = ("coflow", "explain", "memory", "nn", "sampling", "train")
_lookup, __dir__ = lazy_names(__name__)
# `train` is a package too, and calling it trains; calling `explain` explains, and `memory` predicts.
for _name in ("explain", "memory", "train"):
    on_call(f"{__name__}.{_name}", partial(_lookup, _name))


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module("penstock.train.callbacks")
    return import_module(f"penstock.{name}") if name in _PACKAGES else _lookup(name)
