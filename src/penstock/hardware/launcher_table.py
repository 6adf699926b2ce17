"""The launchers, which cluster files choose from by name: what each does, and where its entry is defined."""

from typing import NamedTuple


class LauncherFacts(NamedTuple):
    """What others need to know of a launcher."""

    entry: str
    """The module and the name of its `cluster.launch.registry.LauncherEntry`, imported when a run asks for it."""
    one_host: bool = False
    """Whether all machines of the cluster file are this host."""
    discovers: bool = False
    """Whether it can say by itself which machines there are."""
    gives_gpus: bool = False
    """Whether it lets each worker see its own GPU alone."""


LAUNCHERS = {
    "local": LauncherFacts("penstock.cluster.launch.local:LOCAL", one_host=True),
    "ray": LauncherFacts("penstock.cluster.launch.ray.launcher:RAY", discovers=True, gives_gpus=True),
    "environment": LauncherFacts("penstock.cluster.launch.environment.launcher:ENVIRONMENT", discovers=True),
}
