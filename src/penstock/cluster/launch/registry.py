"""The launcher that a cluster file names.

A new launcher is one file with its entry, and one line in `hardware.launcher_table.LAUNCHERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cluster.launch.launcher import Launcher
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.launcher_table import LAUNCHERS


def _controls(cluster: ClusterDocument) -> bool:
    return True


@dataclass(frozen=True)
class LauncherEntry:
    """One launcher."""

    make: Callable[[ClusterDocument, Path], Launcher]
    """For a cluster and a run folder."""
    take_part: Callable[[ClusterDocument], bool] = _controls
    """Called before anything else of a run. False: this process was not to control it, and its part is over."""
    discover: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None
    """Completes the fields of a cluster file with the machines that it finds."""


def launcher_entry(name: str) -> LauncherEntry:
    """The entry of a launcher."""
    module, _, attribute = LAUNCHERS[name].entry.partition(":")
    entry: LauncherEntry = getattr(import_module(module), attribute)
    return entry


def make_launcher(cluster: ClusterDocument, run: Path) -> Launcher:
    """The launcher that a cluster file names, for a run folder."""
    return launcher_entry(cluster.launcher).make(cluster, run)


def take_part(cluster: ClusterDocument) -> bool:
    """Call it before anything else of a run. False: this process was not to control it, and its part is over."""
    return launcher_entry(cluster.launcher).take_part(cluster)
