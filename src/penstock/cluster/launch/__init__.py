"""Ways to start tasks behind one interface: `local` processes, the nodes of `ray`, a job of torchrun or srun.

`launcher` is the interface; each way imports what it needs when it is asked for.
"""

from pathlib import Path

from penstock.cluster.launch.launcher import Handle, Launcher
from penstock.hardware.cluster import ClusterDocument

__all__ = ["Handle", "Launcher", "make_launcher", "take_part"]


def make_launcher(cluster: ClusterDocument, run: Path) -> Launcher:
    """The launcher that a cluster file names, for a run folder."""
    if cluster.launcher == "ray":
        from penstock.cluster.launch.ray.launcher import RayLauncher

        return RayLauncher(cluster, run)
    if cluster.launcher == "environment":
        from penstock.cluster.launch.environment.launcher import EnvironmentLauncher

        return EnvironmentLauncher(cluster, run)
    from penstock.cluster.launch.local import LocalLauncher

    return LocalLauncher(run)


def take_part(cluster: ClusterDocument) -> bool:
    """Call it before anything else of a run. False: this process was not to control it, and its part is over."""
    if cluster.launcher != "environment":
        return True
    from penstock.cluster.launch.environment.taking_part import become

    return become(cluster)
