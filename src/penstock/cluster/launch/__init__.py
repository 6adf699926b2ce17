"""Ways to start tasks behind one interface: `local` processes, the nodes of `ray`, a job of torchrun or srun.

`registry` has the interface and finds the launcher that a cluster file names; each imports what it needs when it is
asked for. `environment` is the launcher for torchrun and srun.
"""

from penstock.cluster.launch.registry import Handle, Launcher, LauncherEntry, launcher_entry, make_launcher, take_part

__all__ = ["Handle", "Launcher", "LauncherEntry", "launcher_entry", "make_launcher", "take_part"]
