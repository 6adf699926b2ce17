"""Ways to start tasks, a file each, behind one interface."""

from pathlib import Path

from penstock.cluster.launch.launcher import Handle, Launcher
from penstock.cluster.launch.local import LocalLauncher

__all__ = ["Handle", "Launcher", "make_launcher"]


def make_launcher(name: str, run: Path) -> Launcher:
    """The launcher that a cluster file names."""
    assert name == "local"
    return LocalLauncher(run)
