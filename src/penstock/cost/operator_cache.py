"""Where the profile of a machine is kept, once it was measured.

It lies in the user's cache folder under the machine's digest: a machine with another device, driver, number of cores or
library has another digest, and no profile yet.
"""

from pathlib import Path

from penstock.cost.machine import Machine
from penstock.cost.profile import Profile, read_profile
from penstock.errors import PenstockError
from penstock.graph.cache_folder import cache_folder


def cached_path(machine: Machine) -> Path:
    """Where the profile of a machine is kept."""
    return cache_folder() / "operators" / f"{machine.digest}.json"


def cached_profile(machine: Machine) -> Profile | None:
    """The profile of a machine; None where it was not measured yet, or by a release with another format."""
    path = cached_path(machine)
    if not path.is_file():
        return None
    try:
        found = read_profile(path)
    except PenstockError:
        # It can be made again, and is when it is asked for.
        return None
    return found if found.machine is not None and found.machine.digest == machine.digest else None
