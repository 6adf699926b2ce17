"""Ways to start tasks behind one interface: `local` processes, the nodes of `ray`, a job of torchrun or srun.

`registry` has the interface; each launcher imports what it needs when it is asked for. `environment` is the launcher
for torchrun and srun. A new launcher is one file with its entry, a line in `LAUNCHERS`, and what others need to know of
it in `hardware.cluster.LAUNCHER_FACTS`.
"""

from pathlib import Path

from penstock.cluster.launch.registry import Handle, Launcher, LauncherEntry
from penstock.hardware.cluster import ClusterDocument
from penstock.registry import Registry

__all__ = ["LAUNCHERS", "Handle", "Launcher", "LauncherEntry", "make_launcher", "take_part"]

LAUNCHERS: Registry[LauncherEntry] = Registry(
    "launcher",
    "penstock.launchers",
    {
        "local": "penstock.cluster.launch.local:LOCAL",
        "ray": "penstock.cluster.launch.ray:RAY",
        "environment": "penstock.cluster.launch.environment:ENVIRONMENT",
    },
    LauncherEntry,
)


def make_launcher(cluster: ClusterDocument, run: Path) -> Launcher:
    """The launcher that a cluster file names, for a run folder."""
    return LAUNCHERS[cluster.launcher].make(cluster, run)


def take_part(cluster: ClusterDocument) -> bool:
    """Call it before anything else of a run. False: this process was not to control it, and its part is over."""
    return LAUNCHERS[cluster.launcher].take_part(cluster)
